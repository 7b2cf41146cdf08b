"""Who survives: selection, mutation of members, lineage.

Must not know: loops, environments, where experience is kept.
"""
