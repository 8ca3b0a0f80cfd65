r"""The norms of one step, written in place while training runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
MANY = 2**20  # float32 numbers in one norm; on a CPU that of 40 million comes out 3 in 1,000 too small


class Sheet:
    r"""A row of norms for each part of a step and one for its mean, each row (kinds, parameters).

    Rows are kept from step to step and norms are written into them. A small tensor made in the middle of a backward
    pass and kept would split the memory that the large ones around it leave behind; getting new memory for those costs
    more than all the norms.
    """

    def __init__(self, kinds: int, parameters: int, device: torch.device, dtype: torch.dtype) -> None:
        self._make = lambda: torch.zeros(kinds, parameters, device=device, dtype=dtype)
        self._rows: list[Tensor] = []
        self._slots: list[list[tuple[Tensor, ...]]] = []
        self.device, self.dtype = device, dtype

    def open(self, index: int) -> list[tuple[Tensor, ...]]:
        """Row `index`, all zero, as 0-dim slots by kind and parameter."""
        if index < len(self._rows):
            self._rows[index].zero_()
        else:
            self._rows.append(self._make())
            self._slots.append([kind.unbind() for kind in self._rows[-1]])
        return self._slots[index]

    def copy(self, rows: int) -> Tensor:
        """The first `rows` rows end to end."""
        return torch.cat(self._rows[:rows]).flatten()


def unrounded(device: torch.device) -> AbstractContextManager[None]:
    """Without autocast, which stands around the backward pass too in some loops, and would take norms in half."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def norm(gradient: Tensor) -> Tensor:
    """|g| in float32 or better. Not squared: in fp16's range the square of 300 is infinite and of 1e-4 zero."""
    dtype = torch.float32 if gradient.dtype in HALF else None
    return torch.linalg.vector_norm(_short(gradient, dtype), dtype=dtype)


def write_norm(gradient: Tensor, slot: Tensor) -> None:
    """|g| in the slot's type."""
    torch.linalg.vector_norm(_short(gradient, slot.dtype), dtype=slot.dtype, out=slot)


def _short(gradient: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Real and dense, and row by row where there are many: something of the same norm."""
    if gradient.is_sparse or gradient.is_complex():
        gradient = _entries(gradient)
    if gradient.dim() < 2 or gradient.numel() <= MANY:
        return gradient
    return torch.linalg.vector_norm(gradient, dim=tuple(range(1, gradient.dim())), dtype=dtype)


def _entries(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
