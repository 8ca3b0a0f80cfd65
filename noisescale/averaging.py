r"""Ratio of means over steps, with an interval that allows for correlation between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import stdtrit
from torch import Tensor

from noisescale.long_run_covariance import Array, long_run_covariance

BLOCK = 64  # steps kept on the device before they are copied to the host in one piece
ROUNDING = 1e-6  # tr Σ/B beside |G|², below which float32 norms of parts can't be told from equal ones
NEGATIVE = "is clearly negative"
IMPOSSIBLE = (
    ", which independent parts can't give: is a sharded norm not reduced over its shards, a mean taken where a sum is "
    "meant (or a sum for a mean), a norm taken after clipping, or do parts share examples?"
)
ALIKE = "all parts have the same gradient: do they hold the same examples?"
NEGLIGIBLE = 1e-8  # an EMA forgets a step once its weight is this small beside the newest one's


@dataclass(frozen=True)
class Ratio:
    r"""A ratio of two means with its confidence interval (Fieller's).

    `value` is always the plain ratio of the two means, and `low` … `high` the ratios that the data don't exclude. Where
    the denominator isn't clearly positive, `determined` is False, `high` is infinite and `remark` says why; `value` is
    then a number to distrust, not one to replace (it is NaN only where there are no rows or the denominator is 0).

    Attributes:
        value, low, high: in the numerators' unit over the denominators'.
        numerator, denominator: the two weighted means, each in its own unit; `…_error` their standard errors.
        rows: behind it, the effective number (Kish) where weights differ.
        determined: whether the denominator is clearly positive.
        remark: why not, empty otherwise.
    """

    value: float
    low: float
    high: float
    numerator: float
    numerator_error: float
    denominator: float
    denominator_error: float
    rows: float
    determined: bool
    remark: str


@dataclass(frozen=True)
class NoiseScale:
    r"""B_simple = tr Σ / |G|² (eq. 2.9) with what stands behind it; `Ratio` says how to read the interval.

    Attributes:
        grad_sq_norm: mean of |G|², in (loss / parameter)², `…_error` its standard error. It may be negative, and stays.
        trace_cov: mean of tr Σ, in the same times one example, likewise.
        b_simple, low, high: in examples.
        confidence: of the interval.
        examples: examples behind the estimate, `steps` optimizer steps; under an EMA the effective numbers (Kish).
        dropped: steps left out so far: a value wasn't finite, or a tracker's `skipped` says why.
        determined: False where |G|² isn't clearly positive at this confidence, and `high` then infinite; or where all
            parts have the same gradient.
        remark: why not, empty otherwise.
    """

    grad_sq_norm: float
    grad_sq_norm_error: float
    trace_cov: float
    trace_cov_error: float
    b_simple: float
    low: float
    high: float
    confidence: float
    examples: float
    steps: float
    dropped: int
    determined: bool
    remark: str

    def plotted(self) -> tuple[float, float, float]:
        """`b_simple`, `low` and `high` as `plotted` has them."""
        return plotted(self.b_simple, self.low, self.high, self.determined)

    def __str__(self) -> str:
        if not self.determined:
            return f"B_simple not determined ({self.remark}; {self.steps:.0f} steps, {self.examples:.0f} examples)"
        interval = f"{self.confidence:.0%} interval {self.low:.4g} to {self.high:.4g}"
        return f"B_simple {self.b_simple:.4g} ({interval}; {self.steps:.0f} steps, {self.examples:.0f} examples)"


def plotted(b_simple: float, low: float, high: float, determined: bool) -> tuple[float, float, float]:
    """The three as a plot should have them: NaN, a gap, for what isn't determined, and never a negative noise scale. Of
    one that isn't determined a positive lower bound stays, and of one that came out negative its upper end."""
    nan = math.nan
    if not determined:
        return nan, low if low > 0 else nan, nan
    return b_simple if b_simple > 0 else nan, max(low, 0.0), high if high > 0 else nan


def ratio_of_means(
    numerators: ArrayLike,
    denominators: ArrayLike,
    weights: ArrayLike | None = None,
    confidence: float = 0.95,
    correlated: bool = False,
) -> Ratio:
    r"""Σ w n / Σ w d with Fieller's interval (1954): all ρ with (n̄ − ρ d̄)² ≤ t² Var(n̄ − ρ d̄).

    The covariance of (n̄, d̄) comes from the rows themselves. For independent rows, Σ w²(x − x̄)(x − x̄)ᵀ with Kish's
    (Σw)²/Σw² − 1 degrees of freedom, right also where rows differ in their noise. With `correlated`, rows are in the
    order of time and the long-run covariance is the mean of ν squared projections on slow cosines (equal-weighted
    cosines; Lazarus, Lewis, Stock and Watson 2018), made orthogonal to the constant and to the weights, with Student's
    t_ν. ν follows from the lag-1 correlation: as large as keeps the bias below 5% for an AR(1), at most n^⅔.

    Args:
        numerators, denominators: shape (n,); for B_simple tr Σ and |G|².
        weights: shape (n,), non-negative, any scale; equal by default.
        confidence: of the interval, two-sided.
        correlated: whether neighbouring rows may be correlated.

    Raises:
        ValueError: shapes that differ, a value that isn't finite, negative weights, a confidence outside (0, 1).
    """
    pairs = np.stack([_vector(numerators, "numerators"), _vector(denominators, "denominators")], axis=-1)
    n = len(pairs)
    w = np.ones(n) if weights is None else _vector(weights, "weights")
    if len(w) != n:
        raise ValueError(f"{len(w)} weights for {n} rows")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if (w < 0).any() or (n and w.sum() == 0):
        raise ValueError("weights must not be negative, and not all zero")
    pairs, w = pairs[w > 0], w[w > 0]
    if len(pairs) == 0:
        nan, inf = math.nan, math.inf
        return Ratio(nan, -inf, inf, nan, nan, nan, nan, 0.0, False, "no rows")

    w = w / w.sum()
    rows = float(1 / (w @ w))
    mean = w @ pairs
    if len(pairs) < 3:
        cov, freedom = np.full((2, 2), math.inf), 0.0
    elif correlated:
        cov, freedom = long_run_covariance(pairs, w, mean)
    else:
        scores = w[:, None] * (pairs - mean)
        freedom = rows - 1
        cov = scores.T @ scores * rows / freedom
    return _fieller(mean, cov, freedom, rows, confidence)


def _vector(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {(~np.isfinite(array)).sum()} values that aren't finite: drop those rows first")
    return array


def _fieller(mean: Array, cov: Array, freedom: float, rows: float, confidence: float) -> Ratio:
    top, bottom = (float(x) for x in mean)
    error_top, error_bottom = (float(math.sqrt(x)) for x in np.diag(cov))
    value = top / bottom if bottom != 0 else math.nan
    low, high, determined, remark = -math.inf, math.inf, False, ""
    if freedom <= 0:
        remark = f"{rows:.0f} rows are too few for an interval"
    else:
        t2 = float(stdtrit(freedom, (1 + confidence) / 2)) ** 2
        a = float(bottom**2 - t2 * cov[1, 1])
        b = float(top * bottom - t2 * cov[0, 1])
        c = float(top**2 - t2 * cov[0, 0])
        discriminant = b * b - a * c
        if bottom > 0 and a > 0:
            root = math.sqrt(max(discriminant, 0.0))  # rounding alone can make it negative here
            low, high, determined = (b - root) / a, (b + root) / a, True
        else:
            sign = NEGATIVE if a > 0 else "isn't clearly positive"
            remark = f"denominator {bottom:.3g} ± {error_bottom:.2g} {sign}"
            if a < 0 < c and top > 0:  # ρ = 0 is excluded, infinity is not
                low = (b - math.sqrt(discriminant)) / a
    return Ratio(value, low, high, top, error_top, bottom, error_bottom, rows, determined, remark)


class MomentAverage:
    r"""Mean of |G|² and of tr Σ over the last steps, then their ratio, with a 95% interval.

    Weights are equal over the last `window` steps, or fall by `decay` a step (an EMA). `update` keeps what it is given
    where it is; 64 steps are copied to the host in one piece, so that no step waits for the device. A step with a value
    that isn't finite is dropped and counted.

    Args:
        window: number of steps, or
        decay: factor per step in (0, 1); 0.99 remembers about 100 steps.

    Raises:
        ValueError: neither or both are given, or one is out of range.
    """

    def __init__(self, window: int | None = None, decay: float | None = None) -> None:
        if (window is None) == (decay is None):
            raise ValueError(f"give either window or decay, got window={window}, decay={decay}")
        if window is not None and not (isinstance(window, Integral) and window >= 1):
            raise ValueError(f"window must be a whole number of steps, at least 1, got {window}")
        if decay is not None and not 0 < decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, got {decay}")
        self.window = None if window is None else int(window)  # NumPy's numbers don't come back out of a checkpoint
        self.decay = None if decay is None else float(decay)
        self.dropped = 0
        self._keep = (
            self.window if self.window is not None else math.ceil(math.log(NEGLIGIBLE) / math.log(decay or 0.5))
        )
        self._rows: Array | None = None  # (steps, 3, *shape): |G|², tr Σ, examples
        self._pending: list[tuple[Any, Any, Any]] = []

    def update(self, grad_sq_norm: Tensor | ArrayLike, trace_cov: Tensor | ArrayLike, examples: Tensor | float) -> None:
        """Add one step: numbers, or arrays or tensors of one common shape (one entry a parameter group).

        Args:
            grad_sq_norm, trace_cov: the step's unbiased estimates, as from `gradient_moments`.
            examples: behind them, positive (not read where it is a tensor).

        Raises:
            ValueError: `examples` that aren't positive.
        """
        if not isinstance(examples, Tensor) and not examples > 0:
            raise ValueError(f"examples must be positive, got {examples}")
        self._pending.append((_detached(grad_sq_norm), _detached(trace_cov), _detached(examples)))
        if len(self._pending) >= BLOCK:
            self._flush()

    def extend(self, grad_sq_norm: Tensor, trace_cov: Tensor, examples: Tensor | float) -> None:
        """Add several steps.

        Args:
            grad_sq_norm, trace_cov: (steps, …), the rest as in `update`.
            examples: behind each step: one number for all, or (steps,).
        """
        self._flush()
        moments = torch.stack([grad_sq_norm, trace_cov], dim=1).detach()
        if isinstance(examples, Tensor):
            each = examples.detach().to(moments).reshape(-1, *[1] * (moments.dim() - 1))
            sizes = each.expand(len(moments), 1, *moments.shape[2:])
            self._append(torch.cat([moments, sizes], dim=1).cpu().to(torch.float64).numpy())
        else:
            host = moments.cpu().to(torch.float64).numpy()
            self._append(np.concatenate([host, np.full_like(host[:, :1], examples)], axis=1))

    def estimate(self, confidence: float = 0.95, index: int | tuple[int, ...] = (), skipped: int = 0) -> NoiseScale:
        """The ratio of the means as it stands.

        Args:
            confidence: of the interval, in (0, 1).
            index: picks the entry where steps hold more than one.
            skipped: steps left out before they came here, added to those dropped.

        Raises:
            ValueError: a confidence outside (0, 1), or an index that doesn't pick one entry.
        """
        self._flush()
        if self._rows is None:
            picked = np.empty((0, 3))
        else:
            picked = self._rows[(slice(None), slice(None), *(index if isinstance(index, tuple) else (index,)))]
        if picked.ndim != 2:
            raise ValueError(f"steps hold values of shape {picked.shape[2:]}: index must pick one, got {index}")
        weights = np.ones(len(picked)) if self.decay is None else self.decay ** np.arange(len(picked))[::-1]
        ratio = ratio_of_means(picked[:, 1], picked[:, 0], weights, confidence, correlated=True)
        examples = ratio.rows * float(weights @ picked[:, 2] / weights.sum()) if len(picked) else 0.0
        determined, remark = ratio.determined, ratio.remark.replace("denominator", "|G|²").replace("rows", "steps")
        if remark.endswith(NEGATIVE):
            remark += IMPOSSIBLE
        if determined and abs(ratio.numerator) <= ROUNDING * ratio.denominator * examples / ratio.rows:
            determined, remark = False, ALIKE
        return NoiseScale(
            grad_sq_norm=ratio.denominator,
            grad_sq_norm_error=ratio.denominator_error,
            trace_cov=ratio.numerator,
            trace_cov_error=ratio.numerator_error,
            b_simple=ratio.value,
            low=ratio.low,
            high=ratio.high,
            confidence=confidence,
            examples=examples,
            steps=ratio.rows,
            dropped=self.dropped + skipped,
            determined=determined,
            remark=remark,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and numbers; loading it goes on with the same bits."""
        self._flush()
        rows = None if self._rows is None else torch.from_numpy(self._rows.copy())
        return {"window": self.window, "decay": self.decay, "dropped": self.dropped, "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state. Raises ValueError where it was saved under another window or decay."""
        saved, here = (state["window"], state["decay"]), (self.window, self.decay)
        if saved != here:
            raise ValueError(f"the state was saved with {_memory(*saved)}, this average has {_memory(*here)}")
        self._pending.clear()
        self.dropped = state["dropped"]
        self._rows = None if state["rows"] is None else state["rows"].numpy().copy()

    def _flush(self) -> None:
        if not self._pending:
            return
        columns = [_to_host(column) for column in zip(*self._pending, strict=True)]
        self._pending.clear()
        shape = columns[0].shape
        if columns[1].shape != shape:
            raise ValueError(f"grad_sq_norm of shape {shape[1:]} and trace_cov of shape {columns[1].shape[1:]} differ")
        examples = np.broadcast_to(columns[2].reshape(columns[2].shape + (1,) * (len(shape) - columns[2].ndim)), shape)
        self._append(np.stack([columns[0], columns[1], examples], axis=1))

    def _append(self, block: Array) -> None:
        finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        self.dropped += int((~finite).sum())
        block = block[finite]
        rows = block if self._rows is None else np.concatenate([self._rows, block])
        self._rows = rows[-self._keep :]


def _memory(window: int | None, decay: float | None) -> str:
    return f"window={window}" if decay is None else f"decay={decay}"


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else np.asarray(value, dtype=np.float64)


def _to_host(column: tuple[Any, ...]) -> Array:
    if all(isinstance(value, Tensor) for value in column):
        return torch.stack(column).cpu().to(torch.float64).numpy()
    return np.stack([np.asarray(value.cpu() if isinstance(value, Tensor) else value, np.float64) for value in column])
