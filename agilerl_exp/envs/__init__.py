"""Environments: made from a spec, vectorised, and adapted to one contract for the loops."""

from agilerl_exp.envs.adapter import MemberEnvs, Restored, Step
from agilerl_exp.envs.episodes import play
from agilerl_exp.envs.make import make_member_envs
from agilerl_exp.envs.observations import leaves, put, stack, take, walk

__all__ = [
    "MemberEnvs",
    "Restored",
    "Step",
    "leaves",
    "make_member_envs",
    "play",
    "put",
    "stack",
    "take",
    "walk",
]
