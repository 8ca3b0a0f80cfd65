r"""Is B_simple a better guess of B_crit than a cheap one? Errors in ln B_crit beside rivals', over tasks of one unit.

A predictor's miss is exp of its mean absolute error in ln B_crit. Each task weighs the same, however many sweeps and
goals it has. The skill of B_simple against a rival is 1 − MAE(B_simple)/MAE(rival): 1 is perfect, 0 no better than the
rival, negative worse. B_simple is taken as it is, while a rival's constants are fitted to all tasks but the one they
predict:

- *a constant*: the median of ln B_crit;
- *a power law* in parameters, examples in the data or B_simple at step 0: a least-squares line in logarithms, its
  exponent held between 0 (a constant: the mean) and 1 (proportional), so that few tasks can't bend it anywhere;
- *the paper's Table 1*: its B_crit at the end of the same task, nothing fitted, so for the hardest goals alone.

*B_simple times a factor*, with ln factor the median of ln B_crit/B_simple over the other tasks, says whether a constant
factor is all that is wrong.

Intervals are the 95% percentiles of a bootstrap over tasks in which everything is fitted again. They hold the errors of
measurement too, which differ from task to task as the rest does; `noise` is the miss that those errors alone would
make of a perfect predictor. With fewer than ten tasks such intervals are rough and rather too narrow.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from experiments.analysis import paper
from experiments.analysis.sweep_summary import SweepResult
from noisescale.pareto.fit import Estimate

Floats = NDArray[np.float64]

REPLICATES = 2000
FEWEST_TASKS = 4
Z95 = 1.96
CONSTANT, TABLE1, PARAMETERS, DATA, START = (
    *("a constant", "the paper's Table 1", "parameters", "examples in the data", "B_simple at step 0"),
)
POWER_LAWS = (PARAMETERS, DATA, START)
Conclusion = Literal["better", "off by a factor", "worse", "can't tell"]


@dataclass(frozen=True)
class Point:
    """One goal of one sweep: both values, and what `rivals` may use, NaN where it is not known."""

    sweep: str
    task: str
    unit: str
    hardest: bool
    b_crit: Estimate
    b_simple: Estimate
    rivals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """One rival over the `tasks` for which it says something: its miss, B_simple's there, and the skill."""

    rival: str
    tasks: int
    theirs: Estimate
    ours: Estimate
    skill: Estimate


@dataclass(frozen=True)
class Line:
    """ln B_crit on ln B_simple: least-squares slope, and correlation."""

    slope: Estimate
    correlation: Estimate


@dataclass(frozen=True)
class Skill:
    """Over the tasks of one unit. `miss` is B_simple's, `factor` the median B_simple/B_crit, `scaled` the skill against
    a constant of B_simple times a factor."""

    unit: str
    tasks: int
    goals: int
    miss: Estimate
    noise: float
    factor: Estimate
    scaled: Estimate
    scores: list[Score]

    @property
    def against_constant(self) -> Estimate:
        return next(score.skill for score in self.scores if score.rival == CONSTANT)

    @property
    def conclusion(self) -> Conclusion:
        """Against a constant, where the interval leaves no doubt."""
        if self.against_constant.low > 0:
            return "better"
        if self.scaled.low > 0:
            return "off by a factor"
        return "worse" if self.against_constant.high < 0 else "can't tell"


def points(sweeps: Sequence[SweepResult], results: Path) -> list[Point]:
    """Every goal at which B_crit and the averaged B_simple are both determined. B_simple at step 0 is taken as it was
    measured, determined or not."""
    found = []
    for sweep in sweeps:
        fits = [fit for fit in sweep.fits if fit.verdict != "not determined" and fit.b_simple_avg.low > 0]
        rivals = {
            TABLE1: _table1(sweep.task, results),
            PARAMETERS: float(sweep.tables.describe("parameters")),
            DATA: data_size(sweep.tables.describe("data")),
            START: sweep.b_simple_start.value,
        }
        found += [
            Point(sweep.name, sweep.task, sweep.unit, fit is fits[-1], fit.b_crit, fit.b_simple_avg, rivals)
            for fit in fits
        ]
    return found


def _table1(task: str, results: Path) -> float:
    names = [row.name for row in paper.PAPER_TASKS if task in row.ours]
    return paper.table1(results)[names[0]]["b_crit"].value if names else np.nan


def data_size(data: str) -> float:
    """Training examples, the first number with thousands in a task's `data`; NaN where it has none."""
    number = re.search(r"\d{1,3}(,\d{3})+", data)
    return float(number.group().replace(",", "")) if number else np.nan


def skill(chosen: Sequence[Point]) -> Skill | None:
    """Over these points of one unit (the hardest goals, or all of them); None with fewer than `FEWEST_TASKS` tasks."""
    sample = _Sample(chosen)
    if sample.tasks < FEWEST_TASKS:
        return None
    scaled = sample.x + sample.others_median(sample.y - sample.x)
    constant = sample.others_median(sample.y)
    found = [sample.score(CONSTANT, constant)]
    for name in (TABLE1, *POWER_LAWS) if all(point.hardest for point in chosen) else POWER_LAWS:
        there = _Sample([point for point in chosen if point.rivals.get(name, 0.0) > 0])
        if there.tasks >= FEWEST_TASKS:
            known = np.log([point.rivals[name] for point in there.points])
            found.append(there.score(name, known if name == TABLE1 else there.others_power_law(known)))
    return Skill(
        unit=chosen[0].unit,
        tasks=sample.tasks,
        goals=len(chosen),
        miss=_interval(np.exp(sample.miss(sample.x))),
        noise=float(np.exp(np.sqrt(2 / np.pi) * sample.mean(sample.error)[0])),
        factor=_interval(np.exp(_median(sample.x - sample.y, sample.weight))),
        scaled=_interval(1 - sample.miss(scaled) / sample.miss(constant)),
        scores=found,
    )


def between(chosen: Sequence[Point]) -> Line | None:
    """Over the points as they are; None with fewer than `FEWEST_TASKS` tasks."""
    sample = _Sample(chosen)
    return sample.line(sample.x, sample.y) if sample.tasks >= FEWEST_TASKS else None


def within(chosen: Sequence[Point]) -> Line | None:
    """Along each sweep's goals: over differences from the sweep's own means. None with fewer than `FEWEST_TASKS` tasks
    that have two goals."""
    goals = Counter(point.sweep for point in chosen)
    kept = [point for point in chosen if goals[point.sweep] > 1]
    sample = _Sample(kept)
    if sample.tasks < FEWEST_TASKS:
        return None
    _, sweep = np.unique([point.sweep for point in kept], return_inverse=True)
    x, y = (values - (np.bincount(sweep, values) / np.bincount(sweep))[sweep] for values in (sample.x, sample.y))
    return sample.line(x, y)


class _Sample:
    """Points as arrays (n,), and their weights (1 + `REPLICATES`, n): as they are, then each time a draw of tasks."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self.x = np.log([point.b_simple.value for point in points])
        self.y = np.log([point.b_crit.value for point in points])
        self.error = np.array([np.hypot(_error(point.b_crit), _error(point.b_simple)) for point in points])
        names, self._task, goals = np.unique([point.task for point in points], return_inverse=True, return_counts=True)
        self.tasks = len(names)
        if names.size:
            rng = np.random.default_rng(0)
            drawn = rng.multinomial(self.tasks, np.full(self.tasks, 1 / self.tasks), size=REPLICATES)
            self.weight = (np.vstack([np.ones(self.tasks), drawn]) / goals)[:, self._task]

    def mean(self, values: Floats) -> Floats:
        """Of `values`, (n,) or (replicates, n), in each replicate."""
        return np.where(self.weight > 0, self.weight * values, 0.0).sum(axis=1) / self.weight.sum(axis=1)

    def miss(self, guess: Floats) -> Floats:
        """Mean absolute error in ln B_crit; NaN where a replicate has but one task, and so nothing to fit to."""
        return self.mean(np.abs(guess - self.y))

    def score(self, rival: str, guess: Floats) -> Score:
        ours, theirs = self.miss(self.x), self.miss(guess)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = 1 - ours / theirs
        return Score(rival, self.tasks, _interval(np.exp(theirs)), _interval(np.exp(ours)), _interval(gain))

    def others_median(self, values: Floats) -> Floats:
        """Of the other tasks' values, for each point, (replicates, n)."""
        return np.stack([_median(values, self._others(task)) for task in range(self.tasks)], axis=1)[:, self._task]

    def others_power_law(self, known: Floats) -> Floats:
        """At each point what the line through the other tasks' ln B_crit against `known` says, (replicates, n)."""
        guess = np.empty_like(self.weight)
        for task in range(self.tasks):
            slope, middle_x, middle_y, _ = _least_squares(known, self.y, self._others(task))
            own = self._task == task
            guess[:, own] = middle_y[:, None] + np.clip(slope, 0, 1)[:, None] * (known[own] - middle_x[:, None])
        return guess

    def _others(self, task: int) -> Floats:
        return np.where(self._task == task, 0.0, self.weight)

    def line(self, x: Floats, y: Floats) -> Line:
        slope, _, _, correlation = _least_squares(x, y, self.weight)
        return Line(_interval(slope), _interval(correlation))


def _least_squares(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Slope (0 where x doesn't vary), mean x, mean y and correlation of a weighted fit, one a row of `weight`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = weight / weight.sum(axis=1, keepdims=True)
        middle_x, middle_y = share @ x, share @ y
        dx, dy = x - middle_x[:, None], y - middle_y[:, None]
        xx, yy, xy = ((share * a * b).sum(axis=1) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
        slope = np.where(xx > 1e-12, xy / xx, 0.0)
        return slope, middle_x, middle_y, xy / np.sqrt(xx * yy)


def _median(values: Floats, weight: Floats) -> Floats:
    """Weighted, one a row of `weight`, the middle of the two where half the weight lies on either side; NaN where all
    weights are 0."""
    order = np.argsort(values, kind="stable")
    ordered, below = values[order], np.cumsum(weight[:, order], axis=1)
    half, slack = below[:, -1:] / 2, 1e-9
    lower, upper = (np.argmax(below >= half + side, axis=1) for side in (-slack, slack))
    return np.where(below[:, -1] > 0, (ordered[lower] + ordered[upper]) / 2, np.nan)


def _interval(values: Floats) -> Estimate:
    """The first of `values`, and the 95% percentiles of the others that are known."""
    low, high = np.nanquantile(values[1:], (0.025, 0.975))
    return Estimate(float(values[0]), float(low), float(high))


def _error(estimate: Estimate) -> float:
    """The standard error of ln, from a closed 95% interval."""
    return float(np.log(estimate.high / estimate.low)) / (2 * Z95)
