"""Environments: made from a spec, vectorised, and adapted to one contract for the loops."""

from agilerl_exp.envs.adapter import MemberEnvs, Restored, Step
from agilerl_exp.envs.make import make_member_envs
from agilerl_exp.envs.observations import stack
from agilerl_exp.envs.play import play

__all__ = ["MemberEnvs", "Restored", "Step", "make_member_envs", "play", "stack"]
