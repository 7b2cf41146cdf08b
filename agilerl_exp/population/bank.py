"""One float32 matrix a role (weights, target, grad, Adam m and v), member-major: row i IS member i.

Must not know: what a network computes with the tensors, what is minimised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

ROLES = ("weights", "target", "grad", "moment1", "moment2")
STATE = ("weights", "target", "moment1", "moment2")
ADAM_BETA1, ADAM_BETA2, ADAM_EPS = 0.9, 0.999, 1e-8
_PAD = 16  # floats: each tensor starts on a 64-byte line, and no vectorised kernel has a tail across tensors


class Bank:
    """Stacked parameters and optimizer state of P members.

    Args:
        pop: number of members P.
        shapes: name and shape of each tensor of one member.
        device: torch device of the matrices.

    Attributes:
        weights, target, grad, moment1, moment2: `[P, n]` float32 matrices.
        adam_step: `[P]` float32, number of optimizer steps of each member.
    """

    weights: Tensor
    target: Tensor
    grad: Tensor
    moment1: Tensor
    moment2: Tensor

    def __init__(
        self, pop: int, shapes: Iterable[tuple[str, tuple[int, ...]]], device: str | torch.device = "cpu"
    ):
        self.shapes = list(shapes)
        self.device = torch.device(device)
        self.offsets, offset = [], 0
        for _, shape in self.shapes:
            self.offsets.append(offset)
            offset += -(-prod(shape) // _PAD) * _PAD
        for role in ROLES:
            setattr(self, role, torch.zeros(pop, offset, device=self.device))
        self.adam_step = torch.zeros(pop, device=self.device)
        self._views = {role: self.split(getattr(self, role)) for role in ROLES}
        self._rows = {role: list(getattr(self, role).unbind(0)) for role in (*STATE, "grad")}
        self._steps = list(self.adam_step.unbind(0))
        self._numpy = [view.numpy() for view in self._views["weights"]] if self.device.type == "cpu" else []

    @property
    def pop(self) -> int:
        """Number of members P."""
        return self.weights.shape[0]

    def split(self, matrix: Tensor) -> list[Tensor]:
        """Views `[R, *shape]` of each tensor inside a matrix `[R, n]`; nothing is copied."""
        return [
            matrix[:, offset : offset + prod(shape)].view(-1, *shape)
            for offset, (_, shape) in zip(self.offsets, self.shapes, strict=True)
        ]

    def join(self, tensors: Sequence[np.ndarray]) -> Tensor:
        """A row `[n]` of the tensors of one member: the inverse of `split`."""
        row = torch.zeros(1, self.weights.shape[1])
        for view, value in zip(self.split(row), tensors, strict=True):
            view[0] = torch.from_numpy(value)
        return row[0]

    def views(self, role: str) -> list[Tensor]:
        """Views `[P, *shape]` of each tensor of a role."""
        return self._views[role]

    def numpy_weights(self, rows: np.ndarray | None) -> list[np.ndarray]:
        """Weights for acting: views of the bank for all rows (None), copies for some of them."""
        if not self._numpy:
            return [view.cpu().numpy() for view in self._views["weights"]]
        return self._numpy if rows is None else [view[rows] for view in self._numpy]

    def set_member(self, row: int, tensors: Sequence[np.ndarray]) -> None:
        """Write the tensors of one member into its weights and target."""
        for view, target, value in zip(self.views("weights"), self.views("target"), tensors, strict=True):
            view[row] = torch.from_numpy(value).to(self.device)
            target[row] = view[row]

    def adam(self, rows: Sequence[int], grad: Tensor, lr: np.ndarray) -> None:
        """One Adam step (Kingma and Ba 2015) of the members `rows`.

        Args:
            rows: R members.
            grad: `[R, n]` gradients in the order of `rows`.
            lr: `(R,)` learning rates; rows of equal rate share one fused call.
        """
        grads = list(grad.unbind(0))
        groups: dict[float, list[int]] = {}
        for k, value in enumerate(lr.tolist()):
            groups.setdefault(value, []).append(k)
        for value, ks in groups.items():
            members = [rows[k] for k in ks]
            steps = [self._steps[i] for i in members]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                [self._rows["weights"][i] for i in members],
                [grads[k] for k in ks],
                [self._rows["moment1"][i] for i in members],
                [self._rows["moment2"][i] for i in members],
                [],
                steps,
                lr=value,
                beta1=ADAM_BETA1,
                beta2=ADAM_BETA2,
                weight_decay=0.0,
                eps=ADAM_EPS,
                amsgrad=False,
                maximize=False,
            )

    def clip_grad(self, grad: Tensor, max_norm: np.ndarray) -> None:
        """Scale each row of `grad` `[R, n]` so that its own 2-norm is at most `max_norm` `(R,)`."""
        norm = torch.linalg.vector_norm(grad, dim=1)
        limit = torch.from_numpy(max_norm).to(grad)
        grad.mul_((limit / (norm + 1e-6)).clamp_(max=1.0).unsqueeze(1))

    def polyak(self, rows: np.ndarray | None, tau: np.ndarray) -> None:
        """target <- (1 - tau) * target + tau * weights, tau `(R,)` per member; rows None = all."""
        if rows is None and (tau == tau[0]).all():
            self.target.lerp_(self.weights, float(tau[0]))
            return
        for i, value in zip(range(self.pop) if rows is None else rows.tolist(), tau.tolist(), strict=True):
            self._rows["target"][i].lerp_(self._rows["weights"][i], value)

    def sync_target(self, rows: Iterable[int]) -> None:
        """target <- weights for the members `rows`."""
        for i in rows:
            self._rows["target"][i].copy_(self._rows["weights"][i])

    def state_dict(self) -> dict[str, Tensor]:
        """All matrices but the gradients, as `[P, n]` tensors."""
        return {role: getattr(self, role) for role in STATE} | {"adam_step": self.adam_step}
