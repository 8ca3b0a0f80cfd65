r"""How many steps a batch size needs: the fit of S = S_min (1 + B_crit/B).

Eq. 2.11 of arXiv 1812.06162, (S/S_min - 1)(E/E_min - 1) = 1 with E = B S, gives ln S = ln S_min + ln(1 + B_crit/B).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtri

from noisescale.pareto.likelihood import Floats, Points, intercept_range, maximum, profile, scan
from noisescale.pareto.points import checked, gather

# Two parameters and a scatter take three points, and a statement about them a fourth.
FEWEST_FOR_A_CURVE = 3
FEWEST_REACHED = 4
INTERVAL_GRID = 121
ZOOM = 33
ZOOMS = 3


@dataclass(frozen=True)
class Estimate:
    """A value with the ends of its confidence interval, all in the value's unit; an open end is 0 or inf."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ParetoFit:
    """What `fit_pareto` found.

    `s_min` is in steps, `e_min` and `b_crit` in examples (the unit of the batch sizes). `rms` is the root mean square
    of the residuals of ln S over the `n` batch sizes, from `smallest` to `largest`, that reached the goal; `n_censored`
    others did not. `remark` says in words what `status` says. A `value` is 0 or inf where no bend fits as well as any,
    and NaN where fewer than three batch sizes reached the goal.
    """

    s_min: Estimate
    e_min: Estimate
    b_crit: Estimate
    rms: float
    n: int
    n_censored: int
    smallest: float
    largest: float
    confidence: float
    status: Literal["determined", "not_determined"]
    remark: str

    @property
    def determined(self) -> bool:
        """Whether B_crit lies within the batch sizes, with an interval closed at both ends."""
        return self.status == "determined"

    def steps(self, batch_size: ArrayLike) -> Floats:
        """S(B) = S_min + E_min/B, the fitted number of steps at batch sizes of any shape."""
        return self.s_min.value + self.e_min.value / np.asarray(batch_size, dtype=float)

    def examples(self, batch_size: ArrayLike) -> Floats:
        """E(B) = E_min + S_min B, the fitted number of examples at batch sizes of any shape."""
        return self.e_min.value + self.s_min.value * np.asarray(batch_size, dtype=float)


def fit_pareto(
    batch_size: ArrayLike,
    steps: ArrayLike,
    *,
    reached: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    confidence: float = 0.95,
) -> ParetoFit:
    r"""S_min, E_min and B_crit, with intervals, from the steps that each batch size took to a goal.

    Fits ln S = ln S_min + ln(1 + B_crit/B) (eq. 2.11), E_min = S_min B_crit (eq. 2.12).

    Maximum likelihood with normal errors of one unknown size in ln S. Runs at the same batch size are averaged (in ln
    S) first, so that a batch size counts as one point and its scatter around the curve, whatever it comes from –
    seeds, a learning rate that is slightly off and shared by them, the curve's own misfit – is what the intervals are
    made of. A batch size at which no run reached the goal is censored: its mean ln S is greater than that of the steps
    given, and enters the likelihood as that (Tobit). Where some reached it and others did not, the others are filled in
    (`runs.filled`).

    The interval of each of the three is the profile likelihood's: all values v with -2 ln L(v) + 2 ln L_max ≤ n ln(1
    + F/(n - 2)), F the quantile of the F distribution with 1 and n - 2 degrees of freedom and n the batch sizes that
    reached the goal. Without censoring that is the F test of the residual sum of squares, and for a curve that is
    linear in its parameters the t interval.

    Choosing each batch size's learning rate by its own results makes every S a little too small, by about the same
    factor: B_crit and its interval are right all the same, S_min and E_min low by that factor.

    Args:
        batch_size: (m,) examples per step, one entry a run.
        steps: (m,) optimizer steps to the goal; where not reached, the steps that the run was given.
        reached: (m,) False where a run did not reach the goal; default all True.
        weights: (m,) relative precision (1/variance) of each ln S, only ratios matter; default all 1. A batch size's
            weight is the sum of its runs'.
        confidence: of the intervals.

    Raises:
        ValueError: on shapes that differ, batch sizes, steps or weights that are not positive and finite, or no runs.
    """
    batch, run_steps, done, precision = checked(batch_size, steps, reached, weights)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    points = gather(batch, np.log(run_steps), done, precision)
    arrived = np.unique(batch)[~points.censored]
    n, n_censored = arrived.size, int(points.censored.sum())
    smallest, largest = (float(arrived.min()), float(arrived.max())) if n else (float("nan"), float("nan"))
    if n < FEWEST_FOR_A_CURVE:
        unknown = Estimate(float("nan"), 0.0, float("inf"))
        remark = f"not determined: {_plural(n)} reached the goal, at least {FEWEST_REACHED} are needed"
        return ParetoFit(
            unknown,
            unknown,
            unknown,
            rms=float("nan"),
            n=n,
            n_censored=n_censored,
            smallest=smallest,
            largest=largest,
            confidence=confidence,
            status="not_determined",
            remark=remark,
        )

    best, deviance = (float(x) for x in maximum(points))
    bottom, top = scan(points)[[0, -1]]
    theta = min(max(best, bottom), top)
    limit = deviance + n * np.log1p(fdtri(1, n - 2, confidence) / (n - 2))
    low, high = _interval(points, theta, limit)
    a = profile(points, np.array([theta]))[1][0]
    s_min, e_min = _ends(points, theta, a, low, high, limit)
    b_crit = Estimate(_exp(best), _exp(low), _exp(high))
    residuals = (points.y - a - np.logaddexp(0.0, theta - points.log_b))[~points.censored]
    why = _undetermined(b_crit, n, smallest, largest)
    return ParetoFit(
        s_min,
        e_min,
        b_crit,
        rms=float(np.sqrt(np.mean(residuals**2))),
        n=n,
        n_censored=n_censored,
        smallest=smallest,
        largest=largest,
        confidence=confidence,
        status="not_determined" if why else "determined",
        remark=f"not determined: {why}" if why else "determined",
    )


def _interval(points: Points, theta: float, limit: float) -> tuple[float, float]:
    """The outermost ln B_crit with -2 ln L ≤ limit; -inf or inf where it goes on beyond the scan."""
    grid = scan(points)
    inside = np.append(grid[profile(points, grid)[0] <= limit], theta)
    step = grid[1] - grid[0]
    low = -np.inf if inside.min() <= grid[0] else _crossing(points, inside.min(), inside.min() - step, limit)
    high = np.inf if inside.max() >= grid[-1] else _crossing(points, inside.max(), inside.max() + step, limit)
    return low, high


def _crossing(points: Points, inside: float, outside: float, limit: float) -> float:
    """The θ next to `inside`, where -2 ln L ≤ limit, at which it passes the limit on the way to `outside`."""
    for _ in range(ZOOMS):
        line = np.linspace(inside, outside, ZOOM)
        above = profile(points, line)[0] - limit
        last = max(int((above > 0).argmax()) - 1, 0)
        inside, outside = line[last], line[last + 1]
    return float(inside + (outside - inside) * above[last] / (above[last] - above[last + 1]))


def _ends(points: Points, theta: float, a: float, low: float, high: float, limit: float) -> tuple[Estimate, Estimate]:
    """S_min = e^a and E_min = e^(a + θ) with the projections of the likelihood region of (θ, a) onto each."""
    bottom, top = scan(points)[[0, -1]]
    grid = np.append(np.linspace(max(low, bottom), min(high, top), INTERVAL_GRID), theta)
    below, above = intercept_range(points, grid, limit)
    # Where the curve has no bend left, S_min → 0 (steps fall as 1/B) or E_min → 0 (steps don't depend on B).
    s_min = Estimate(0.0 if theta == top else _exp(a), 0.0 if high == np.inf else _exp(below.min()), _exp(above.max()))
    e_min = Estimate(
        0.0 if theta == bottom else _exp(a + theta),
        0.0 if low == -np.inf else _exp((below + grid).min()),
        _exp((above + grid).max()),
    )
    return s_min, e_min


def _exp(x: float) -> float:
    """e^x, inf where that is more than a float holds: with three points an interval can reach that far."""
    with np.errstate(over="ignore"):
        return float(np.exp(x))


def _undetermined(b_crit: Estimate, n: int, smallest: float, largest: float) -> str:
    if n < FEWEST_REACHED:
        return f"{_plural(n)} reached the goal, at least {FEWEST_REACHED} are needed"
    if b_crit.low == 0 and b_crit.high == np.inf:
        return "no bend: any B_crit fits the points"
    if b_crit.low == 0:
        return f"no bend: steps may not depend on the batch size at all (B_crit < {_short(b_crit.high)})"
    if b_crit.high == np.inf:
        return f"no bend: steps may fall as 1/B throughout (B_crit > {_short(b_crit.low)})"
    if b_crit.value < smallest:
        return f"B_crit below the smallest batch that reached the goal ({smallest:,.10g})"
    if b_crit.value > largest:
        return f"B_crit above the largest batch that reached the goal ({largest:,.10g})"
    return ""


def _short(value: float) -> str:
    """Three significant digits without an exponent: 390,000 rather than 3.9e+05."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _plural(n: int) -> str:
    return f"{n} batch size" + ("" if n == 1 else "s")
