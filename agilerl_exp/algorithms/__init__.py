"""What to minimise: one file an algorithm.

Must not know: loops, clocks, buffers.
"""
