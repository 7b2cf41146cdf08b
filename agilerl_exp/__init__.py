"""A Hydra-composed experiment framework for evolutionary reinforcement learning.

Importing it costs nothing: every room is imported by its own path (`agilerl_exp.models.training`,
`agilerl_exp.algorithms.dqn`, ...).
"""

__version__ = "0.1.0"
