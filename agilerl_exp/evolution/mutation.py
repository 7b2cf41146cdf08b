"""What one mutation does to one member: which kind it is, and noise on the weights of its policy.

Must not know: who is mutated and why.
"""

from __future__ import annotations

import numpy as np
import torch

from agilerl_exp.models.evolution import MutationProbabilities
from agilerl_exp.population.cohort import Cohort

KINDS = {"none": "no_mut", "arch": "arch", "params": "params", "activation": "activation", "rl_hp": "rl_hp"}
_SHARE = 0.1  # of the entries
_STRONG, _RESET = 0.05, 0.1  # of those: ten times the noise, up to here drawn anew
_LARGEST = 1e6


def draw_kinds(
    probabilities: MutationProbabilities, rng: np.random.Generator, pop: int, sure: bool = False
) -> list[str]:
    """One of `KINDS` for each of `pop` members, by the relative weights; `sure` leaves out `none`."""
    weights = np.array([getattr(probabilities, name) for name in KINDS.values()])
    weights[0] *= not sure
    if not weights.any():
        return ["none"] * pop
    names = list(KINDS)
    return [names[k] for k in rng.choice(len(weights), pop, p=weights / weights.sum())]


def shake(cohort: Cohort, row: int, sd: float, rng: np.random.Generator) -> None:
    """Noise on a tenth of the entries of weight matrices of a member's first network; its target follows.

    Each matrix is taken with probability 1/2. Of the entries taken 5 % get noise ten times their size, 5 % are drawn
    from N(0, 1), the others get noise of `sd` times their size (Lehman et al. 2018 as used by Franke et al. 2021).
    Biases and norms stay.
    """
    name, net = next(iter(cohort.nets.items()))
    weights, targets = (cohort.by_net(cohort.bank.views(role))[name] for role in ("weights", "target"))
    for leaf, weight, target in zip(net.layout(), weights, targets, strict=True):
        if len(leaf.axes) > 1 and rng.random() < 0.5:
            value = weight[row].cpu().numpy()
            taken = rng.random(value.shape, np.float32) < _SHARE
            old = value[taken].astype(np.float64)
            kind, noise = rng.random(old.shape), rng.standard_normal(old.shape)
            new = old + noise * np.where(kind < _STRONG, 10.0, sd) * np.abs(old)
            new = np.where((kind >= _STRONG) & (kind < _RESET), noise, new)
            value[taken] = np.clip(new, -_LARGEST, _LARGEST)
            weight[row] = torch.from_numpy(value)
        target[row] = weight[row]
