"""The loops: they own the environments, the clocks, the random streams and the I/O; never which algorithm runs."""
