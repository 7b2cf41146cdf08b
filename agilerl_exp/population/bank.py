"""One float32 matrix a role (weights, target, grad, Adam m and v), member-major: row i IS member i.

Must not know: what a network computes with the tensors, what is minimised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
        weights, target, grad, moment1, moment2: `[P, n]` float32 matrices; all but `grad` are parts of `state`.
        adam_step: `[P]` float32, number of optimizer steps of each member.
    """

    def __init__(
        self, pop: int, shapes: Iterable[tuple[str, tuple[int, ...]]], device: str | torch.device = "cpu"
    ):
        self.shapes = list(shapes)
        self.device = torch.device(device)
        self.offsets, offset = [], 0
        for _, shape in self.shapes:
            self.offsets.append(offset)
            offset += -(-prod(shape) // _PAD) * _PAD
        # One block, so that one gather moves whole members.
        self.state = torch.zeros(len(STATE), pop, offset, device=self.device)
        self.weights, self.target, self.moment1, self.moment2 = self.state.unbind(0)
        self.grad = torch.zeros(pop, offset, device=self.device)
        self.adam_step = torch.zeros(pop, device=self.device)
        # Made when they are asked for: many cohorts live for a moment only.
        self._views: dict[str, list[Tensor]] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._numpy: list[np.ndarray] = []

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
        """The matrix `[R, n]` of tensors `(R, *shape)`: the inverse of `split`."""
        matrix = torch.zeros(len(tensors[0]), self.weights.shape[1])
        for view, value in zip(self.split(matrix), tensors, strict=True):
            view[...] = torch.from_numpy(value)
        return matrix

    def views(self, role: str) -> list[Tensor]:
        """Views `[P, *shape]` of each tensor of a role."""
        if role not in self._views:
            self._views[role] = self.split(getattr(self, role))
        return self._views[role]

    def _row(self, role: str, members: Iterable[int]) -> list[Tensor]:
        """Views `[n]` of the rows of some members."""
        if role not in self._rows:
            self._rows[role] = list(getattr(self, role).unbind(0))
        rows = self._rows[role]
        return [rows[i] for i in members]

    def numpy_weights(self, rows: np.ndarray | None) -> list[np.ndarray]:
        """Weights for acting: views of the bank for all rows (None), copies for some of them."""
        if self.device.type != "cpu":
            return [view.cpu().numpy() for view in self.views("weights")]
        if not self._numpy:
            self._numpy = [view.numpy() for view in self.views("weights")]
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
            steps = self._row("adam_step", members)
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                self._row("weights", members),
                [grads[k] for k in ks],
                self._row("moment1", members),
                self._row("moment2", members),
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
            self.target[i].lerp_(self.weights[i], value)

    def sync_target(self, rows: Iterable[int]) -> None:
        """target <- weights for the members `rows`."""
        for i in rows:
            self.target[i] = self.weights[i]

    def state_dict(self, rows: int | np.ndarray) -> dict[str, Tensor]:
        """All that is kept of a member, `[4, n]` and `[]` (views), or of several, `[4, R, n]` and `[R]` (copies)."""
        return {"state": self.state[:, rows], "adam_step": self.adam_step[rows]}

    def load_state_dict(self, rows: int | np.ndarray, state: Mapping[str, Any]) -> None:
        """Write into rows what `state_dict` gave."""
        self.state[:, rows] = state["state"].to(self.device)
        self.adam_step[rows] = state["adam_step"].to(self.device)


def by_role(state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The state of one member as arrays, for a file."""
    roles = dict(zip(STATE, state["state"].cpu().numpy(), strict=True))
    return roles | {"adam_step": state["adam_step"].cpu().numpy()}


def from_roles(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """The inverse of `by_role`."""
    state = torch.from_numpy(np.stack([arrays[role] for role in STATE]))
    return {"state": state, "adam_step": torch.as_tensor(arrays["adam_step"])}
