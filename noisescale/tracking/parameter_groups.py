"""Which parameters are measured, what they are called, and which groups they are summed into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from noisescale.preconditioning import PRECONDITIONED
from noisescale.tracking.wrappers import bare

TOTAL = "total"

Groups = Literal["layer"] | Callable[[str], str | None] | None


class Columns:
    r"""The model's parameters in order, and the matrix that sums their squared norms into a total and groups.

    A parameter used in several places is one parameter; names are those inside DDP and `torch.compile`. `groups` is
    None for the total alone, "layer" for one group a module that owns parameters, or a function from a parameter's name
    to its group's name (None: in no group).
    """

    def __init__(self, model: nn.Module, groups: Groups) -> None:
        model = bare(model)
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        canonical = {id(p): name for name, p in self.parameters.items()}
        self.canonical = {n: canonical[id(p)] for n, p in model.named_parameters(remove_duplicate=False)}
        if not self.parameters:
            raise ValueError("the model has no parameters to measure")
        lazy = [name for name, p in self.parameters.items() if is_lazy(p)]
        if lazy:
            raise ValueError(
                f"{', '.join(lazy)}: no shape yet (a lazy module); run the model once, then make the tracker"
            )
        group_of = _group_of(groups)
        owners = [group_of(name) for name in self.parameters]
        wrong = [owner for owner in owners if not isinstance(owner, str | None)]
        if wrong:
            raise ValueError(f"groups must give names (str) or None, got {wrong[0]!r}")
        self.names = [TOTAL, *dict.fromkeys(owner for owner in owners if owner is not None)]
        if groups is not None and (len(self.names) == 1 or {TOTAL, PRECONDITIONED} & set(self.names[1:])):
            raise ValueError(
                f"groups gave {self.names[1:]}: at least one is needed, and none may be called '{TOTAL}' or "
                f"'{PRECONDITIONED}'"
            )
        column = {name: i for i, name in enumerate(self.names)}
        self._sums = torch.zeros(len(owners), len(self.names), dtype=torch.float64)
        self._sums[:, 0] = 1
        for row, owner in enumerate(owners):
            if owner is not None:
                self._sums[row, column[owner]] = 1

    def sum(self, sq_norms: Tensor) -> Tensor:
        """(..., parameters) → (..., columns)."""
        if self._sums.device != sq_norms.device:
            self._sums = self._sums.to(sq_norms.device)
        return sq_norms @ self._sums


def _group_of(groups: Groups) -> Callable[[str], str | None]:
    if groups is None:
        return lambda name: None
    if groups == "layer":
        return lambda name: name.rpartition(".")[0] or name
    if callable(groups):
        return groups
    raise ValueError(f"groups must be None, 'layer' or a function of a parameter's name, got {groups!r}")
