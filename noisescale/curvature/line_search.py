r"""B_noise as the paper measures it: ΔL(B) from line searches along gradients of many batch sizes, fitted (eq. 2.7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import optimize, special
from torch import Tensor, nn

from noisescale.side_effects import undisturbed

SPAN = 40.0  # ln B_noise is searched this far beyond the batch sizes that were tried


class LineSearch(NamedTuple):
    """The best common step along several gradients: its length ε, a learning rate, and the mean decrease of the loss
    (eq. 2.7) in the loss's own unit, ≥ 0."""

    step: float
    decrease: float


@torch.no_grad()
def line_search(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], directions: Sequence[Sequence[Tensor]]
) -> LineSearch:
    r"""max over ε of L(θ) − mean over directions of L(θ − ε G_est): the ΔL of eq. 2.7 for one batch size.

    The step is common to the directions because ε_opt(B) of the theory is: a step chosen for each direction would look
    at that direction's noise. ε is bracketed by powers of two and refined by Brent's method. Weights are restored.

    Args:
        model: evaluated as it stands (its mode, its dropout: a loss that varies from call to call can't be searched).
        loss: `loss(model)` on a fixed set, the same for all batch sizes.
        directions: gradients, one tensor for each parameter that requires a gradient, each from B examples.

    Raises:
        ValueError: no directions, one whose tensors don't have the parameters' shapes or aren't finite, or a loss that
            isn't at the present weights.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    shapes = [p.shape for p in parameters]
    if not directions:
        raise ValueError("line_search needs at least one direction")
    for direction in directions:
        if [g.shape for g in direction] != shapes:
            raise ValueError(
                f"a direction has shapes {[tuple(g.shape) for g in direction]}, the parameters that require a gradient "
                f"{[tuple(shape) for shape in shapes]}"
            )
        if not all(bool(torch.isfinite(g).all()) for g in direction):
            raise ValueError("a direction holds values that aren't finite: leave that gradient out")
    saved = [p.detach().clone() for p in parameters]

    def mean_loss(step: float) -> float:
        total = 0.0
        for direction in directions:
            for p, start, g in zip(parameters, saved, direction, strict=True):
                p.copy_(start - step * g)
            total += float(loss(model))
        return total / len(directions)

    with undisturbed(model):
        try:
            start = float(loss(model))
            if not math.isfinite(start):
                raise ValueError(f"the loss at the present weights is {start}: there is nothing to search down from")
            step, lowest = _minimise(mean_loss, start)
        finally:
            for p, value in zip(parameters, saved, strict=True):
                p.copy_(value)
    return LineSearch(step, start - lowest)


def _minimise(mean_loss: Callable[[float], float], start: float) -> tuple[float, float]:
    """The lowest point found, at 0 or between steps that bracket it; a loss that isn't a number is never lower."""
    values = {0.0: start}

    def f(step: float) -> float:
        if step not in values:
            found = mean_loss(step)
            values[step] = found if math.isfinite(found) else math.inf
        return values[step]

    scale = 1.0
    while not f(scale) < start and scale > 1e-12:
        scale /= 2
    while f(2 * scale) < f(scale) and scale < 1e12:
        scale *= 2
    if f(0.0) > f(scale) < f(2 * scale):
        optimize.minimize_scalar(f, bracket=(0.0, scale, 2 * scale), method="brent", options={"xtol": 1e-4})
    return min(values.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class LineSearchFit:
    r"""ΔL(B) = ΔL_max / (1 + B_noise/B) fitted to line searches (eq. 2.7).

    Attributes:
        b_noise, low, high: in examples, with the ends of the interval; an open end is 0 or inf.
        max_decrease: ΔL_max, in units of the loss.
        determined: False where the interval is open.
        remark: why, '' where it is determined.
    """

    b_noise: float
    low: float
    high: float
    max_decrease: float
    determined: bool
    remark: str


def fit_line_searches(batch_sizes: ArrayLike, decreases: ArrayLike, confidence: float = 0.95) -> LineSearchFit:
    r"""B_noise from the mean decrease of the loss at several batch sizes (eq. 2.7), with a profile interval.

    Fits ln ΔL(B) = ln ΔL_max − ln(1 + B_noise/B) to the means over repetitions. Their errors come from the spread over
    repetitions, smoothed as a power of B. The interval holds all B_noise whose χ² exceeds the lowest by at most t²,
    Student's t with n (r − 1) degrees of freedom.

    Args:
        batch_sizes: B in examples, shape (n,), at least 3 different ones.
        decreases: ΔL > 0, shape (n, r): r ≥ 2 independent line searches at each batch size.
        confidence: of the interval, two-sided.

    Raises:
        ValueError: shapes that don't fit, fewer than 3 batch sizes or 2 repetitions, a mean decrease ≤ 0, values that
            aren't finite, batch sizes that aren't positive, a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    sizes, values = np.asarray(batch_sizes, np.float64), np.asarray(decreases, np.float64)
    if values.ndim != 2 or values.shape[:1] != sizes.shape:
        raise ValueError(f"decreases must be (batch sizes, repetitions) = ({sizes.size}, r), got {values.shape}")
    wrong = ~(np.isfinite(sizes) & (sizes > 0))
    if wrong.any():
        raise ValueError(f"batch sizes must be positive and finite, got {sizes[wrong][0]:g}")
    if not np.isfinite(values).all():
        at = sizes[~np.isfinite(values).all(1)][0]
        raise ValueError(f"a decrease at B = {at:g} isn't finite: leave that repetition out at every batch size")
    n, repetitions = values.shape
    if len(np.unique(sizes)) < 3 or repetitions < 2:
        raise ValueError(f"needs 3 batch sizes and 2 repetitions, got {len(np.unique(sizes))} and {repetitions}")
    mean = values.mean(1)
    if not (mean > 0).all():
        raise ValueError(
            f"no decrease at B = {sizes[~(mean > 0)][0]:g}: the step was too long, or the gradient is noise"
        )
    y = np.log(mean)
    relative = np.log(np.maximum(values.std(1, ddof=1) / mean, 1e-12))
    variance = np.exp(2 * np.polyval(np.polyfit(np.log(sizes), relative, 1), np.log(sizes)))
    half = (repetitions - 1) / 2
    weights = repetitions / variance * np.exp(special.digamma(half)) / half  # ln s² is low by ψ(ν/2) − ln(ν/2)

    def chi2(log_noise: float) -> float:
        residual = y + np.log1p(np.exp(log_noise) / sizes)
        return float(weights @ (residual - weights @ residual / weights.sum()) ** 2)

    ends = np.log(sizes.min()) - SPAN, np.log(sizes.max()) + SPAN
    grid = np.linspace(*ends, 400)
    near = int(np.argmin([chi2(x) for x in grid]))
    bounds = grid[max(near - 1, 0)], grid[min(near + 1, len(grid) - 1)]
    best = optimize.minimize_scalar(chi2, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    limit = float(best.fun) + float(special.stdtrit(n * (repetitions - 1), (1 + confidence) / 2)) ** 2
    low = optimize.brentq(lambda x: chi2(x) - limit, ends[0], best.x) if chi2(ends[0]) > limit else -np.inf
    high = optimize.brentq(lambda x: chi2(x) - limit, best.x, ends[1]) if chi2(ends[1]) > limit else np.inf
    residual = y + np.log1p(np.exp(best.x) / sizes)
    remark = ""
    if high == np.inf:
        remark = f"ΔL still grows in proportion to B at the largest batch, {sizes.max():g}"
    elif low == -np.inf:
        remark = f"ΔL doesn't grow with B from the smallest batch, {sizes.min():g}, on"
    return LineSearchFit(
        b_noise=float(np.exp(best.x)),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        max_decrease=float(np.exp(weights @ residual / weights.sum())),
        determined=not remark,
        remark=remark,
    )
