r"""How the critical batch size grows as the loss falls: the fit of B_crit = B_* / L^(1/α_B) over goals.

Eq. 1.4 of Kaplan et al. 2020 (arXiv 2001.08361): ln B_crit = ln B_* - (1/α_B) ln L, a line in the logs. They found B_*
about 2e8 tokens and α_B about .21 for transformers of all sizes, L in nats per token.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from noisescale.pareto.fit import Estimate

KAPLAN_B_STAR = 2e8
KAPLAN_ALPHA = 0.21
FEWEST = 3


@dataclass(frozen=True)
class ScalingFit:
    """B_crit = `b_star` / L^`exponent`, `exponent` = 1/α_B, from `n` goals; `rms` of the residuals of ln B_crit.

    `b_star` is B_crit at L = 1, which may lie far outside the losses measured. `covariance`, (2, 2), is that of
    (ln `b_star`, `exponent`).
    """

    b_star: Estimate
    exponent: Estimate
    covariance: NDArray[np.float64]
    rms: float
    n: int
    confidence: float

    @property
    def alpha(self) -> Estimate:
        """α_B = 1/`exponent`. Where the exponent's interval holds 0, no α_B is too large: `high` = inf."""
        value, low, high = self.exponent.value, self.exponent.low, self.exponent.high
        if low <= 0 <= high:
            return Estimate(1 / value if value > 0 else np.inf, 1 / high if high > 0 else np.inf, np.inf)
        return Estimate(1 / value, 1 / high, 1 / low)

    def b_crit(self, loss: ArrayLike) -> NDArray[np.float64]:
        """The fitted B_crit at losses of any shape."""
        return self.b_star.value / np.asarray(loss, dtype=float) ** self.exponent.value


def fit_scaling(
    loss: ArrayLike, b_crit: ArrayLike, low: ArrayLike, high: ArrayLike, *, confidence: float = 0.95
) -> ScalingFit:
    """The line through (ln L, ln B_crit), goals weighted by the width of their intervals.

    Weighted least squares with variances proportional to (ln(high/low) / 2z)²: what is taken from the intervals is
    their relative size, while their common scale is estimated from the scatter around the line when that is larger
    than they say, and taken at its word when it is smaller, since goals on the same runs share their errors. The
    intervals are Student's t with n - 2 degrees of freedom.

    Args:
        loss: (n,) L at each goal, in nats, positive.
        b_crit: (n,) at that goal.
        low: (n,) lower ends of its intervals, positive: leave out goals that are not determined.
        high: (n,) upper ends, finite.
        confidence: of the intervals given and returned.

    Raises:
        ValueError: fewer than three goals, shapes that differ, values out of order or not positive and finite, or
            losses that are all the same.
    """
    columns = [np.asarray(column, dtype=float) for column in (loss, b_crit, low, high)]
    if columns[0].ndim != 1 or any(column.shape != columns[0].shape for column in columns):
        raise ValueError(f"loss, b_crit, low and high need one shape (n,), got {[column.shape for column in columns]}")
    if columns[0].size < FEWEST:
        raise ValueError(f"{columns[0].size} goals; a line with an interval needs {FEWEST}")
    if not all((np.isfinite(column) & (column > 0)).all() for column in columns):
        raise ValueError("loss, b_crit, low and high must be positive and finite; leave out goals without both ends")
    losses, values, lows, highs = columns
    if not ((lows <= values) & (values <= highs) & (lows < highs)).all():
        raise ValueError("every b_crit must lie within its interval, low < high")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    x, y = -np.log(losses), np.log(values)
    if np.ptp(x) == 0:
        raise ValueError(f"all goals have the same loss {losses[0]:g}; the exponent needs different ones")
    sigma = np.log(highs / lows) / (2 * ndtri((1 + confidence) / 2))
    design = np.stack([np.ones_like(x), x], 1) / sigma[:, None]
    covariance = np.linalg.inv(design.T @ design)
    best = covariance @ design.T @ (y / sigma)
    residuals = y - best[0] - best[1] * x
    degrees = x.size - 2
    covariance = covariance * max(1.0, float(np.sum((residuals / sigma) ** 2)) / degrees)
    reach = stdtrit(degrees, (1 + confidence) / 2) * np.sqrt(np.diag(covariance))
    return ScalingFit(
        b_star=Estimate(*(float(np.exp(best[0] + sign * reach[0])) for sign in (0, -1, 1))),
        exponent=Estimate(*(float(best[1] + sign * reach[1]) for sign in (0, -1, 1))),
        covariance=covariance,
        rms=float(np.sqrt(np.mean(residuals**2))),
        n=int(x.size),
        confidence=confidence,
    )
