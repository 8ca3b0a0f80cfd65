r"""One use of a parameter in a forward pass, and what the gradients it brings to the examples add up to in squares.

A parameter used several times (tied weights, a layer called twice) has one gradient: the uses are summed before the
norm. Each use is kept in the form that is cheapest to take norms in; a matrix product never has to be formed where
positions are few, because |Σ_t u_t v_tᵀ|² = Σ_{t,s} (u_t·u_s)(v_t·v_s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOGETHER = 16  # examples whose gradients are formed at once


@dataclass(frozen=True)
class Whole:
    """The per-example gradient itself, shape (B, numel)."""

    gradient: Tensor

    def total(self) -> Tensor:
        return self.gradient.sum(0)


@dataclass(frozen=True)
class Formed:
    r"""`gradients(x, g)`, shape (b, numel), of any b of the examples' inputs and output gradients.

    Formed for a few examples at a time: those of a whole batch are as large as B models, and far slower once they
    leave the cache. Norms don't ask in which order the values are: `kernel_last` is the shape (out, kernel, in) of one
    gradient where the parameter's own is (out, in, kernel).
    """

    x: Tensor
    g: Tensor
    gradients: Callable[[Tensor, Tensor], Tensor]
    kernel_last: tuple[int, int, int] | None = None

    def pieces(self) -> Iterator[Tensor]:
        for x, g in zip(self.x.split(TOGETHER), self.g.split(TOGETHER), strict=True):
            yield self.gradients(x, g)

    def ordered(self) -> Iterator[Tensor]:
        """The pieces in the parameter's order."""
        for piece in self.pieces():
            yield piece if self.kernel_last is None else piece.unflatten(1, self.kernel_last).mT.flatten(1)

    def total(self) -> Tensor:
        return torch.stack([piece.sum(0) for piece in self.ordered()]).sum(0)


@dataclass(frozen=True)
class Outer:
    r"""Σ_t u_t v_tᵀ: a linear layer with u = dL/d(output), shape (B, T, out), and v = input, shape (B, T, in).

    `gram` is u uᵀ, shape (B, T, T), where several parameters share u and it was taken already.
    """

    u: Tensor
    v: Tensor
    gram: Tensor | None = None

    def total(self) -> Tensor:
        return self.u.flatten(0, 1).T @ self.v.flatten(0, 1)


@dataclass(frozen=True)
class Rows:
    """Row `ids[t]` of a table gets `gradient[t]`: an embedding; ids (B, T), gradient (B, T, width), rows in all."""

    ids: Tensor
    gradient: Tensor
    rows: int

    def total(self) -> Tensor:
        table = self.gradient.new_zeros(self.rows, self.gradient.shape[-1])
        return table.index_add_(0, self.ids.flatten(), self.gradient.flatten(0, 1))


Use = Whole | Formed | Outer | Rows


def examples(use: Use) -> int:
    """B."""
    return len(use.u if isinstance(use, Outer) else use.g if isinstance(use, Formed) else use.gradient)


def norm(uses: Sequence[Use]) -> Tensor:
    """√(Σ_b |G_b|²) over the examples b, where G_b is their gradient of one parameter from all its uses."""
    if len(uses) == 1 and isinstance(uses[0], Formed):
        return torch.linalg.vector_norm(torch.stack([_norm(piece) for piece in uses[0].pieces()]))
    if any(isinstance(use, Whole | Formed) for use in uses):
        gradients = [_whole(use) for use in uses]
        return _norm(gradients[0] if len(gradients) == 1 else torch.stack(gradients).sum(0))
    outers = [use for use in uses if isinstance(use, Outer)]
    rows = [use for use in uses if isinstance(use, Rows)]
    outer = outers[0] if outers else None
    if outer is not None and len(outers) > 1:
        outer = Outer(torch.cat([o.u for o in outers], 1), torch.cat([o.v for o in outers], 1))
    if not rows:
        assert outer is not None
        return _outer_norm(outer)
    row = rows[0]
    if len(rows) > 1:
        row = Rows(torch.cat([r.ids for r in rows], 1), torch.cat([r.gradient for r in rows], 1), row.rows)
    same = row.ids[:, :, None] == row.ids[:, None, :]
    square = (_gram(row.gradient, row.gradient) * same).sum()
    if outer is not None:
        index = row.ids[:, None, :].expand(-1, outer.u.shape[1], -1)
        both = (outer.u.gather(2, index) * _gram(outer.v, row.gradient)).sum()
        square = square + _outer_norm(outer) ** 2 + 2 * both
    return _root(square)


def _whole(use: Use) -> Tensor:
    if isinstance(use, Formed):
        return torch.cat(list(use.ordered()))
    if isinstance(use, Outer):
        return (use.u.transpose(1, 2) @ use.v).flatten(1)
    assert isinstance(use, Whole), "an embedding's table is never a vector's or a convolution's weight"
    return use.gradient


def _outer_norm(use: Outer) -> Tensor:
    positions, out, into = use.u.shape[1], use.u.shape[2], use.v.shape[2]
    if positions == 1:
        return torch.linalg.vector_norm(torch.linalg.vector_norm(use.u, dim=2) * torch.linalg.vector_norm(use.v, dim=2))
    if use.gram is not None or positions * (out + into) < out * into:
        of_u = _gram(use.u, use.u) if use.gram is None else use.gram
        return _root(torch.linalg.vecdot(of_u.flatten(1), _gram(use.v, use.v).flatten(1)).sum())
    return _norm(use.u.transpose(1, 2) @ use.v)


def _gram(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.transpose(1, 2)


def _norm(gradients: Tensor) -> Tensor:
    """Row by row first: of 10 million numbers in one go a norm in float32 is 4 in 10,000 too small on a CPU."""
    return torch.linalg.vector_norm(torch.linalg.vector_norm(gradients, dim=-1))


def _root(square: Tensor) -> Tensor:
    """√; where terms cancel, rounding may leave less than nothing."""
    return square.clamp(min=0).sqrt()
