"""Where experience lives: packed rings of transitions, uniform or prioritized, one-step or n-step.

Must not know: algorithms, environments, torch.
"""

from agilerl_exp.buffers.replay import ReplayBuffer, join
from agilerl_exp.buffers.transition import Batch, Transition

__all__ = ["Batch", "ReplayBuffer", "Transition", "join"]
