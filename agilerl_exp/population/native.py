"""The compiled engine: one whole gradient step of an action-value network in a single call, on the rows of a bank.

Same meaning as the hand-written step in torch and as autograd (tests hold them within 1e-5), other rounding.
Must not know: which algorithm asks. Without a C compiler it is not there, and the torch engines serve.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, TypeGuard

import numpy as np
import torch

from agilerl_exp.functional.compiled import load_library
from agilerl_exp.functional.running_stats import CLIP
from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.networks.network import Network
from agilerl_exp.population.bank import Bank

DEEPEST = 16  # MAX_LAYERS of native.c
WIDEST = 512  # beyond it a tuned BLAS is faster than plain loops
_FLAGS = ("-O3", "-march=native", "-fno-math-errno")
_INTEGERS = ("members", "batch", "layers", "row_length", "norm")
_POINTERS = (
    *("width", "offset", "rows", "count", "weights", "target", "moment1", "moment2", "adam_step", "grad"),
    *(
        "obs",
        "next_obs",
        "mean",
        "inverse",
        "action",
        "reward",
        "discount",
        "terminated",
        "scale",
        "next_mask",
    ),
    *("lr", "tau"),
)


class _Task(ctypes.Structure):
    """The struct of native.c, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _INTEGERS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("twice", "huber")),
        *((name, ctypes.c_double) for name in ("max_norm", "clip")),
        *((name, ctypes.c_void_p) for name in ("value", "td_error", "q_value", "scratch")),
    ]


@functools.cache
def compiled_step() -> ctypes.CDLL | None:
    """The compiled step, or None."""
    found = load_library("agilerl_exp.population", "native", _FLAGS)
    if found is not None:
        found.td_scratch.argtypes, found.td_scratch.restype = [ctypes.c_void_p], ctypes.c_int64
        found.td_update.argtypes, found.td_update.restype = [ctypes.c_void_p], None
    return found


def serves(net: Network, bank: Bank) -> TypeGuard[Mlp]:
    """Whether the compiled step covers this network on this bank."""
    if not isinstance(net, Mlp):
        return False
    plain = net.activation == "ReLU" and len(net.widths) <= DEEPEST
    return plain and max(net.widths) <= WIDEST and bank.device.type == "cpu" and compiled_step() is not None


class TdStep:
    """The compiled step of one bank.

    Args:
        net: the network whose tensors fill a row of the bank.
        bank: weights, targets and moments.
        twice: double Q-learning.
        huber: Huber loss in place of the squared error.
        max_norm: limit of a member's gradient norm, or None.
    """

    def __init__(self, net: Mlp, bank: Bank, *, twice: bool, huber: bool, max_norm: float | None):
        loaded = compiled_step()
        assert loaded is not None  # `serves` was asked
        self._library, self._bank = loaded, bank
        self._width = np.array(net.widths, np.int64)
        self._offset = np.array(bank.offsets, np.int64)
        self._grad = np.zeros(bank.weights.shape[1], np.float32)
        self._scratch = np.zeros(0, np.float32)
        self._small: dict[tuple[int, int], _Small] = {}
        task = self._task = _Task(layers=len(net.widths) - 1, row_length=bank.weights.shape[1])
        task.norm = net.layer_norm
        task.twice, task.huber, task.max_norm, task.clip = twice, huber, max_norm or 0.0, CLIP
        task.width, task.offset = self._width.ctypes.data, self._offset.ctypes.data
        task.grad = self._grad.ctypes.data
        for role in ("weights", "target", "moment1", "moment2", "adam_step"):
            setattr(task, role, getattr(bank, role).data_ptr())
        self._address = ctypes.addressof(task)

    def __call__(
        self,
        rows: np.ndarray,
        count: np.ndarray,
        batch: dict[str, Any],
        normalizer: tuple[np.ndarray, np.ndarray] | None,
        lr: np.ndarray,
        tau: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step of the members `rows` (R,).

        Args:
            rows: int64 rows of the bank.
            count: int64 (R,) rows of each batch; what comes after them is not read.
            batch: obs, next_obs float32 (R, B, D); action int64, reward, discount, terminated, scale float32
                (R, B); next_mask uint8 (R, B, A) or None.
            normalizer: mean and inverse deviation of observations, float32 (P, D), or None.
            lr: float64 (R,).
            tau: float64 (R,); below 0 the target stays.

        Returns:
            Loss (R,), TD errors (R, B), mean value of the actions taken (R,); the next call overwrites them.
        """
        shape = batch["reward"].shape
        task, small = self._task, self._small.get(shape) or self._shape(shape)
        small.enter(task)
        small.rows[:], small.count[:], small.lr[:], small.tau[:] = rows, count, lr, tau
        kept = []  # until the call returns: copies of views that are not dense
        arrays = {**batch, "mean": None, "inverse": None}
        if normalizer is not None:
            arrays["mean"], arrays["inverse"] = normalizer
        for name, array in arrays.items():
            if array is not None:
                kept.append(np.ascontiguousarray(array))
            setattr(task, name, None if array is None else _address(kept[-1]))
        self._library.td_update(self._address)
        return small.value, small.td_error, small.q_value

    def _shape(self, shape: tuple[int, int]) -> _Small:
        small = self._small[shape] = _Small(shape)
        small.enter(self._task)
        floats = self._library.td_scratch(self._address)
        if floats > len(self._scratch):
            self._scratch = np.zeros(floats, np.float32)
            self._task.scratch = self._scratch.ctypes.data
        return small


class _Small:
    """Arguments and results of one shape (R, B) that stay in place: an address costs more than filling them."""

    def __init__(self, shape: tuple[int, int]):
        self.shape = shape
        self.rows, self.count = np.zeros(shape[0], np.int64), np.zeros(shape[0], np.int64)
        self.lr, self.tau = np.zeros(shape[0]), np.zeros(shape[0])
        self.value, self.q_value = np.zeros(shape[0], np.float32), np.zeros(shape[0], np.float32)
        self.td_error = np.zeros(shape, np.float32)
        names = ("rows", "count", "lr", "tau", "value", "td_error", "q_value")
        self._addresses = [(name, getattr(self, name).ctypes.data) for name in names]

    def enter(self, task: _Task) -> None:
        """Point the task at these arrays."""
        if task.rows == self._addresses[0][1]:
            return
        task.members, task.batch = self.shape
        for name, address in self._addresses:
            setattr(task, name, address)


def _address(array: np.ndarray) -> int:
    """Address of an array, at half the cost of `array.ctypes.data`."""
    return torch.from_numpy(array).data_ptr() if array.flags.writeable else array.ctypes.data
