"""Pure maths: targets, losses, schedules, statistics. Every function reduces trailing axes only.

Must not know: members, networks, buffers, environments.
"""
