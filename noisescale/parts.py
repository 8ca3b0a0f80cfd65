r"""The sums over a step's parts, which add up over micro-batches and over ranks before anything is divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from noisescale.estimators import Moments, from_sums

HALF = (torch.float16, torch.bfloat16)


def norm(gradient: Tensor) -> Tensor:
    """|g| in float32 or better. Not squared: in fp16's range the square of 300 is infinite and of 1e-4 zero."""
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.linalg.vector_norm(gradient, dtype=torch.float32 if gradient.dtype in HALF else None)


class Part(NamedTuple):
    """One gradient of a step: squared norms of w G by column, its examples, and w where it was given."""

    sq_norms: Tensor
    examples: float
    weight: float | None


class StepSums(NamedTuple):
    r"""Σ |w G|²/w and |Σ w G|² by column; Σ w/b, Σ w²/b, Σ w and Σ b over the parts. Numbers, or 0-dim tensors."""

    squares: Tensor
    mean_sq_norm: Tensor
    noise_of_parts: float | Tensor
    noise_of_mean: float | Tensor
    weight: float | Tensor
    examples: float | Tensor

    def moments(self, ranks: int = 1) -> Moments[Tensor]:
        """|G|² and tr Σ by column; `ranks` is how many gradients were averaged into the step's."""
        weight = self.weight
        scale = (weight / ranks) ** 2
        return from_sums(
            self.squares / weight,
            self.mean_sq_norm / scale,
            self.noise_of_parts / weight,
            self.noise_of_mean / weight**2,
        )


def sum_parts(parts: Sequence[Part], mean_sq_norm: Tensor) -> StepSums:
    """One rank's sums. Parts without a weight count the same, and their weights sum to 1.

    Raises:
        ValueError: some parts have a weight and others don't.
    """
    given = [part.weight for part in parts if part.weight is not None]
    if given and len(given) < len(parts):
        raise ValueError(f"{len(given)} of {len(parts)} parts have a weight: give it for all of a step's or for none")
    weights = given or [1 / len(parts)] * len(parts)
    stacked = torch.stack([part.sq_norms for part in parts])
    if len(set(weights)) == 1:
        squares = stacked.sum(0) / weights[0]
    else:
        squares = sum((row / w for row, w in zip(stacked, weights, strict=True)), torch.zeros_like(mean_sq_norm))
    examples = [part.examples for part in parts]
    return StepSums(
        squares,
        mean_sq_norm,
        noise_of_parts=sum(w / b for w, b in zip(weights, examples, strict=True)),
        noise_of_mean=sum(w * w / b for w, b in zip(weights, examples, strict=True)),
        weight=sum(weights),
        examples=sum(examples),
    )


class Reduction:
    """The same sums over all ranks, under way: `wait` returns them. The mean's norm is added up only if `shards`."""

    def __init__(self, sums: StepSums, group: dist.ProcessGroup | None, shards: bool) -> None:
        self._shards = shards
        self._mean = sums.mean_sq_norm
        scalars = [torch.full((1,), float(x), dtype=torch.float64, device=self._mean.device) for x in sums[2:]]
        self._payload = torch.cat([sums.squares, *([self._mean] if shards else []), *scalars])
        self._work = dist.all_reduce(self._payload, group=group, async_op=True)

    def wait(self) -> StepSums:
        assert self._work is not None
        self._work.wait()
        columns = len(self._mean)
        vectors = self._payload[:-4].split(columns)
        return StepSums(vectors[0], vectors[1] if self._shards else self._mean, *self._payload[-4:].unbind())
