"""The noise scale at one point of a run by kind of layer, of the plain gradient and in the optimizer's own metric.

A kind of layer is a group of parameters that the task names by their prefixes (`groups`); a task without groups has a
total alone. A group's |G|² and tr Σ are those of its coordinates, so they add up to the total's over disjoint groups.
In an adaptive optimizer's metric every coordinate is divided by √v̂ + ε first (`noisescale.preconditioning`); one that
has had no gradient yet, v̂ = 0, is left out.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from experiments.tasks.base import Task
from experiments.training.flat_model import FlatModel
from noisescale import gradient_moments, ratio_of_means
from noisescale.preconditioning import inverse_roots

TOTAL = "total"


def layer_noise(
    task: Task,
    flat: FlatModel,
    optimizer: torch.optim.Optimizer,
    size: int,
    rows: int,
    parts: int,
    generator: torch.Generator,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """`rows` independent estimates from `parts` gradients of `size` units each, then the ratio of their means.

    A row a (group, `preconditioned`): `grad_sq_norm`, `trace_cov` (per unit), `b_simple` with its interval's ends, and
    `determined`. The preconditioned ones are there if the optimizer keeps second moments. Weights and the global random
    state are left alone.
    """
    slices = {TOTAL: [slice(0, flat.vector.numel())], **flat.group_slices(getattr(task, "groups", {}))}
    metrics: dict[bool, Tensor | float] = {False: 1.0}
    if any("square_avg" in state or "exp_avg_sq" in state for state in optimizer.state.values()):
        inverse = inverse_roots(optimizer)[id(flat.vector)]
        metrics[True] = torch.where(inverse < 1 / optimizer.param_groups[0]["eps"], inverse, 0.0)
    squares = torch.empty(rows, len(metrics), len(slices), parts)
    means = torch.empty(rows, len(metrics), len(slices))
    total, gradient = (torch.zeros_like(flat.vector.data) for _ in range(2))
    views = flat.views(gradient)
    with torch.random.fork_rng([total.device] if total.device.type == "cuda" else []):
        for row in range(rows):
            total.zero_()
            for part in range(parts):
                flat.differentiate(task.loss(task.batch(size // task.sample_size, generator)), views)
                squares[row, :, :, part] = _norms(gradient, metrics, slices)
                total += gradient
            means[row] = _norms(total / parts, metrics, slices)
    moments = gradient_moments(squares, [size] * parts, means)
    found = []
    for i, preconditioned in enumerate(metrics):
        for j, group in enumerate(slices):
            ratio = ratio_of_means(moments.trace_cov[:, i, j], moments.grad_sq_norm[:, i, j], confidence=confidence)
            found.append(
                {
                    "group": group,
                    "preconditioned": preconditioned,
                    "grad_sq_norm": ratio.denominator,
                    "trace_cov": ratio.numerator,
                    "b_simple": ratio.value,
                    "b_simple_low": ratio.low,
                    "b_simple_high": ratio.high,
                    "determined": ratio.determined,
                }
            )
    return pd.DataFrame(found)


def _norms(gradient: Tensor, metrics: Mapping[bool, Tensor | float], slices: Mapping[str, Sequence[slice]]) -> Tensor:
    """(metric, group) squared norms."""
    scaled = [gradient * scale for scale in metrics.values()]
    return torch.stack(
        [torch.stack([sum(g[part].dot(g[part]) for part in kept) for kept in slices.values()]) for g in scaled]
    )
