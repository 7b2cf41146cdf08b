"""Durable effects: random streams, checkpoints, the job directory, signals, trackers, the display.

Must not know: which algorithm runs, how a loss is formed, or what Hydra is.
"""
