r"""The sums over a step's parts, which add up over micro-batches and over ranks before anything is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from noisescale.estimators import Moments, from_sums
from noisescale.tracking.parameter_groups import Columns


class Part(NamedTuple):
    r"""`count` gradients G_j of equal weight: Σ_j |w_j G_j|² by column, Var G_j over Σ, their examples and Σ_j w_j.

    For one mean gradient of b examples count is 1 and `noise` 1/b; for b single examples they are b and 1.
    """

    sq_norms: Tensor
    noise: float
    examples: float
    weight: float
    count: int = 1


def weights_of(given: Sequence[float | None]) -> list[float]:
    """The weights as given; equal and adding up to 1 where none is.

    Raises:
        ValueError: some parts have a weight and others don't.
    """
    weights = [weight for weight in given if weight is not None]
    if weights and len(weights) < len(given):
        raise ValueError(f"{len(weights)} of {len(given)} parts have a weight: give it for all of a step's or for none")
    return weights or [1 / len(given)] * len(given)


def merge(examples: Sequence[float], given: Sequence[float | None], sq_norms: Tensor) -> Part:
    """Micro-batches that were only seen as their weighted sum: one part."""
    weights = weights_of(given)
    total = sum(weights)
    noise = sum(w * w / b for w, b in zip(weights, examples, strict=True)) / total**2
    return Part(sq_norms, noise, sum(examples), total)


class StepSums(NamedTuple):
    r"""Σ |w G|²/w and |Σ w G|², (steps, columns); Σ w n, Σ w² n with n = 1/b, Σ w and Σ b over the parts."""

    squares: Tensor
    mean_sq_norm: Tensor
    noise_of_parts: float | Tensor
    noise_of_mean: float | Tensor
    weight: float | Tensor
    examples: float | Tensor

    def moments(self, averaged: float = 1) -> Moments[Tensor]:
        """|G|² and tr Σ by column; `averaged` is what the ranks' gradients, added up, were divided by."""
        weight = self.weight
        scale = (weight / averaged) ** 2
        return from_sums(
            self.squares / weight,
            self.mean_sq_norm / scale,
            self.noise_of_parts / weight,
            self.noise_of_mean / weight**2,
        )


def sum_parts(parts: Sequence[Part], mean_sq_norm: Tensor) -> StepSums:
    """One rank's sums."""
    stacked = torch.stack([part.sq_norms for part in parts])
    each = [part.weight / part.count for part in parts]
    if len(set(each)) == 1:
        squares = stacked.sum(0) / each[0]
    else:
        squares = torch.stack([row / w for row, w in zip(stacked, each, strict=True)]).sum(0)
    return StepSums(
        squares,
        mean_sq_norm,
        noise_of_parts=sum(part.weight * part.noise for part in parts),
        noise_of_mean=sum(part.weight**2 / part.count * part.noise for part in parts),
        weight=sum(part.weight for part in parts),
        examples=sum(part.examples for part in parts),
    )


@dataclass(frozen=True)
class Layout:
    """How a step was cut: examples, weights as given and how many gradients, for each part. `merged`: seen as one."""

    examples: tuple[float, ...]
    weights: tuple[float | None, ...]
    counts: tuple[int, ...]
    merged: bool = False
    scaled: bool = False
    mean_scaled: bool = False

    def sums(self, norms: Tensor, columns: Columns, kinds: int) -> StepSums:
        """The sums of n steps that were cut alike.

        `norms` has shape (n, (k + 1) · kinds · parameters [+ 1]): of each part, of the mean, then the loss's scale.
        """
        values = norms.double()
        scale = values[:, -1:] if self.scaled else None
        parts = 1 if self.merged else len(self.examples)
        squares = (values[:, :-1] if self.scaled else values).unflatten(1, (parts + 1, kinds, -1)) ** 2
        others = squares[:, :, 1:].sum(-1)
        by_column = torch.cat([columns.sum(squares[:, :, 0]), others], dim=-1)
        seen, mean = by_column[:, :-1], by_column[:, -1]
        if scale is not None:
            seen = seen / scale[..., None] ** 2
            mean = mean / scale**2 if self.mean_scaled else mean
        if self.merged:
            return sum_parts([merge(self.examples, self.weights, seen[:, 0])], mean)
        cut = zip(seen.unbind(1), self.counts, self.examples, weights_of(self.weights), strict=True)
        return sum_parts([Part(rows, count / b, b, w, count) for rows, count, b, w in cut], mean)


def over_ranks(steps: Sequence[StepSums], group: dist.ProcessGroup | None, shards: bool) -> StepSums:
    """Sums of some steps over all ranks; those of the means' norms only if `shards`.

    Not asynchronous: gloo's thread aborts a process that ends while it lets go of a reduction (after DDP's own too).
    """
    mean = torch.cat([sums.mean_sq_norm for sums in steps])
    payload = torch.cat([_rows(sums, shards) for sums in steps])
    dist.all_reduce(payload, group=group)
    columns = mean.shape[1]
    whole = payload[:, columns : 2 * columns] if shards else mean
    return StepSums(payload[:, :columns], whole, *payload[:, -4:].split(1, 1))


def _rows(sums: StepSums, shards: bool) -> Tensor:
    shape = len(sums.squares), 1
    scalars = [torch.full(shape, float(x), dtype=torch.float64, device=sums.squares.device) for x in sums[2:]]
    return torch.cat([sums.squares, *([sums.mean_sq_norm] if shards else []), *scalars], 1)
