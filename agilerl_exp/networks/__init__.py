"""Stacked networks: P members of one architecture evaluated by one call.

Must not know: environments, buffers, losses, optimizers.
"""
