"""Banks and cohorts: members of equal architecture as stacked tensors.

Must not know: environments, buffers, which algorithm runs.
"""
