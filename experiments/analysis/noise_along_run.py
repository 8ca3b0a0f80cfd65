r"""The noise scale averaged over the way to a goal, ⟨𝓑⟩ = ∫𝓑 ds / ∫ds, the value that theory says B_crit has.

A step at batch size B is worth ds = dS/(1 + 𝓑/B) full-batch steps, S_min = ∫ds and E_min = ∫𝓑 ds. With 𝓑 = t/g (t = tr
Σ, g = |G|²) both integrands have the same denominator, ds = dS · g/(g + t/B) and 𝓑 ds = dS · t/(g + t/B): E|Ḡ|², the
mean square of the batch's own gradient, never small by chance, whatever the sign of an estimate of g.

Small batches are measured by rare probes, so t and g are not averaged run by run. Each is a trend times a local mean.
The trend is exp of a quadratic in the metric and ln B, fitted to all runs' measurements. The local mean is that of
measured/trend, with weights that fall with the distance in the metric (by sixteenths of the way) and in ln B (by
factors of e): wide enough for noise, and what the trend has it cannot blur (Hjort and Glad 1995, a kernel with a
parametric start). The integrals follow each run's own curve, a fit of the metric that is dense in steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.analysis.noise_at_goal import Curve, Floats, weigh
from experiments.analysis.noise_trend import Trend, fit_trend
from noisescale.averaging import Ratio

WIDTH = 1 / 16
LEVELS = 33
FEWEST_RUNS = 5
REPLICATES = 400
# A metric that falls below this share of the goal (an error of 0) counts as there.
FLOOR = 0.1


@dataclass(frozen=True)
class Measured:
    """All runs' measurements as columns: their `run` (index), ln B, place on the `way`, the pair, and weights."""

    run: np.ndarray
    log_b: Floats
    way: Floats
    trace: Floats
    square: Floats
    weight: Floats

    def trends(self) -> tuple[Trend, Trend]:
        """Of `trace` and `square`."""
        trace, square = (fit_trend(self.way, self.log_b, values, self.weight) for values in (self.trace, self.square))
        return trace, square


def averaged(curves: Sequence[Curve], steps: Sequence[float], goal: float) -> Ratio:
    """⟨𝓑⟩ up to each run's own step of `steps`, at which its metric passes `goal`; Σ∫𝓑 ds / Σ∫ds over the runs.

    The interval is the percentile interval of `REPLICATES` bootstraps over runs, each with its measurements and its
    curve. `determined` needs `FEWEST_RUNS` runs with measurements and a finite interval. `numerator` and `denominator`
    are a run's mean ∫𝓑 ds and ∫ds.
    """
    if not any(run.at.size for run in curves):
        return Ratio(np.nan, -np.inf, np.inf, np.nan, np.nan, np.nan, np.nan, 0.0, False, "no rows")
    first = np.array([run.metric[0] for run in curves])
    falling = float(np.median(first)) > goal
    levels = _way(np.linspace(first.max() if falling else first.min(), goal, 2), goal, falling)
    levels = np.linspace(*levels, LEVELS)
    count = len(curves)
    copies = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=REPLICATES).T
    copies = np.column_stack([np.ones(count), copies])
    ways = [_way(run.metric, goal, falling) for run in curves]
    measured = _gather(curves, ways)
    trends = measured.trends()
    top, bottom = np.zeros(REPLICATES + 1), np.zeros(REPLICATES + 1)
    sizes = np.array([run.batch_size for run in curves])
    for size in np.unique(sizes):
        worth, noise = _local(measured, trends, levels, float(size), copies)
        for k in np.flatnonzero(sizes == size):
            stay = _stay(curves[k].step, ways[k], steps[k], levels)
            seen = stay > 0
            bottom += copies[k] * (stay[seen] @ worth[seen])
            top += copies[k] * (stay[seen] @ noise[seen])
    return _summary(top / count, bottom / count, len(set(measured.run)))


def _way(metric: Floats, goal: float, falling: bool) -> Floats:
    """How far on the way to the goal: ln of a metric that falls to a positive goal, else the metric."""
    return np.log(np.maximum(metric, FLOOR * goal)) if falling and goal > 0 else metric


def _gather(curves: Sequence[Curve], ways: Sequence[Floats]) -> Measured:
    run = np.concatenate([np.full(len(run.at), k) for k, run in enumerate(curves)])
    way = np.concatenate([np.interp(run.middle, run.step, way) for run, way in zip(curves, ways, strict=True)])
    trace, square, examples = (
        np.concatenate([getattr(run, name) for run in curves]) for name in ("trace", "square", "examples")
    )
    log_b = np.log([curves[k].batch_size for k in run])
    return Measured(run, log_b, way, trace, square, weigh(trace, square, examples))


def _local(
    measured: Measured, trends: tuple[Trend, Trend], levels: Floats, size: float, copies: Floats
) -> tuple[Floats, Floats]:
    """g/(g + t/B) and t/(g + t/B) at each of `levels` for B = `size`, (levels, replicates); NaN where g + t/B isn't
    positive, or nothing is measured."""
    width = WIDTH * abs(levels[-1] - levels[0])
    log_b = np.log(size)
    kernel = np.exp(-(((levels[:, None] - measured.way) / width) ** 2 + (log_b - measured.log_b) ** 2) / 2)
    kernel *= measured.weight
    drawn = copies[measured.run]
    with np.errstate(invalid="ignore"):  # a replicate may have drawn no run that measured anything
        trace, square = (
            trend.at(levels, np.full(len(levels), log_b))[:, None]
            * (kernel @ (values[:, None] * drawn))
            / (kernel @ (trend.at(measured.way, measured.log_b)[:, None] * drawn))
            for values, trend in zip((measured.trace, measured.square), trends, strict=True)
        )
    mean_square = square + trace / size
    mean_square[mean_square <= 0] = np.nan
    return square / mean_square, trace / mean_square


def _stay(step: Floats, way: Floats, end: float, levels: Floats) -> Floats:
    """How many of the run's steps up to `end` are spent at each of `levels`, shared linearly between the nearest
    two."""
    edges = np.concatenate([[0.0], step[(step > 0) & (step < end)], [end]])
    middle = np.interp(np.maximum(edges[:-1], (edges[1:] + edges[:-1] - 1) / 2), step, way)
    place = np.clip((middle - levels[0]) / (levels[1] - levels[0]), 0, LEVELS - 1)
    lower = np.minimum(place.astype(int), LEVELS - 2)
    steps = np.diff(edges)
    stay = np.bincount(lower, steps * (lower + 1 - place), LEVELS)
    return stay + np.bincount(lower + 1, steps * (place - lower), LEVELS)


def _summary(top: Floats, bottom: Floats, informed: int) -> Ratio:
    """From the estimate (first entry) and its replicates (the others)."""
    values = np.full(len(top), np.inf)
    np.divide(top, bottom, out=values, where=bottom > 0)
    ordered = np.sort(values[1:])
    tail = round(0.025 * REPLICATES)
    low, high, remark = float(ordered[tail]), float(ordered[-1 - tail]), ""
    if informed < FEWEST_RUNS:
        low, high, remark = -np.inf, np.inf, f"{informed} rows are too few for an interval"
    elif not np.isfinite(high):
        remark = "denominator isn't clearly positive"
    known = [x[1:][np.isfinite(x[1:])] for x in (top, bottom)]
    errors = [float(x.std(ddof=1)) if x.size > 1 else np.nan for x in known]
    value = float(top[0] / bottom[0])
    return Ratio(value, low, high, top[0], errors[0], bottom[0], errors[1], float(informed), not remark, remark)
