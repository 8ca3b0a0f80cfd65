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

Intervals are those of `TaskBootstrap`, everything fitted again in each draw. They hold the errors of measurement too,
which differ from task to task as the rest does; `noise` is the miss that those errors alone would make of a perfect
predictor. For 5, 8 and 16 independent tasks with normal errors they hold the true skill in 94 to 97% of simulations
(`tests/experiments/analysis/test_skill.py`); tasks that share data are not independent.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.analysis import paper
from experiments.analysis.sweep_summary import SweepResult
from experiments.analysis.task_bootstrap import Floats, TaskBootstrap, interval
from noisescale.pareto.fit import Estimate

FEWEST_TASKS = 4
Z95 = 1.96
CONSTANT, TABLE1 = "a constant", "the paper's Table 1"
PARAMETERS, DATA, START = "parameters", "examples in the data", "B_simple at step 0"
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
    """One rival over the `tasks` for which it says something: its miss, and B_simple's skill against it."""

    rival: str
    tasks: int
    miss: Estimate
    skill: Estimate


@dataclass(frozen=True)
class Skill:
    """Over some goals of the tasks of one unit. `miss` is B_simple's, `factor` the median B_simple/B_crit, `scaled` the
    skill against a constant of B_simple times a factor; the first of `scores` is the constant's."""

    tasks: int
    goals: int
    miss: Estimate
    noise: float
    factor: Estimate
    scaled: Estimate
    scores: list[Score]

    @property
    def conclusion(self) -> Conclusion:
        """Against a constant, where the interval leaves no doubt."""
        against = self.scores[0].skill
        if against.low > 0:
            return "better"
        if self.scaled.low > 0:
            return "off by a factor"
        return "worse" if against.high < 0 else "can't tell"


@dataclass(frozen=True)
class Line:
    """ln B_crit on ln B_simple: least-squares slope, and correlation."""

    slope: Estimate
    correlation: Estimate


@dataclass(frozen=True)
class UnitSkill:
    """Of all tasks that count B in one unit: at the hardest goals and over all; ln B_crit on ln B_simple between tasks,
    at the hardest goals, and along the goals of each sweep, where enough tasks have two."""

    unit: str
    hardest: Skill
    every: Skill
    between: Line
    within: Line | None


def unit_skills(chosen: Sequence[Point]) -> list[UnitSkill]:
    """Of every unit with `FEWEST_TASKS` tasks or more, those with more tasks first."""
    found = []
    for unit in dict.fromkeys(point.unit for point in chosen):
        every = [point for point in chosen if point.unit == unit]
        hardest = [point for point in every if point.hardest]
        if _tasks(hardest) >= FEWEST_TASKS:
            found.append(UnitSkill(unit, skill(hardest), skill(every), between(hardest), within(every)))
    return sorted(found, key=lambda one: -one.hardest.tasks)


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


def skill(chosen: Sequence[Point]) -> Skill:
    """Over these points of one unit, of two tasks or more."""
    x, y, tasks = _columns(chosen)
    constant = tasks.others_median(y)
    found = [_score(CONSTANT, chosen, constant)]
    for name in (TABLE1, *POWER_LAWS) if all(point.hardest for point in chosen) else POWER_LAWS:
        there = [point for point in chosen if point.rivals.get(name, 0.0) > 0]
        if _tasks(there) >= FEWEST_TASKS:
            known = np.log([point.rivals[name] for point in there])
            _, own_y, own = _columns(there)
            found.append(_score(name, there, known if name == TABLE1 else own.others_line(known, own_y, 0, 1)))
    scaled = x + tasks.others_median(y - x)
    errors = np.array([np.hypot(_error(point.b_crit), _error(point.b_simple)) for point in chosen])
    return Skill(
        tasks=tasks.tasks,
        goals=len(chosen),
        miss=interval(np.exp(tasks.mean(np.abs(x - y)))),
        noise=float(np.exp(np.sqrt(2 / np.pi) * tasks.mean(errors)[0])),
        factor=interval(np.exp(tasks.median(x - y))),
        scaled=interval(_gain(tasks.mean(np.abs(scaled - y)), tasks.mean(np.abs(constant - y)))),
        scores=found,
    )


def between(chosen: Sequence[Point]) -> Line:
    """Over the points as they are."""
    x, y, tasks = _columns(chosen)
    return Line(*map(interval, tasks.slope(x, y)))


def within(chosen: Sequence[Point]) -> Line | None:
    """Over differences from each sweep's own means; None with fewer than `FEWEST_TASKS` tasks that have two goals."""
    goals = Counter(point.sweep for point in chosen)
    kept = [point for point in chosen if goals[point.sweep] > 1]
    if _tasks(kept) < FEWEST_TASKS:
        return None
    x, y, tasks = _columns(kept)
    _, sweep = np.unique([point.sweep for point in kept], return_inverse=True)
    x, y = (values - (np.bincount(sweep, values) / np.bincount(sweep))[sweep] for values in (x, y))
    return Line(*map(interval, tasks.slope(x, y)))


def _columns(chosen: Sequence[Point]) -> tuple[Floats, Floats, TaskBootstrap]:
    """ln B_simple, ln B_crit, and the tasks."""
    x, y = np.log([(point.b_simple.value, point.b_crit.value) for point in chosen]).T
    return x, y, TaskBootstrap([point.task for point in chosen])


def _score(rival: str, chosen: Sequence[Point], guess: Floats) -> Score:
    x, y, tasks = _columns(chosen)
    theirs = tasks.mean(np.abs(guess - y))
    return Score(rival, tasks.tasks, interval(np.exp(theirs)), interval(_gain(tasks.mean(np.abs(x - y)), theirs)))


def _gain(ours: Floats, theirs: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - ours / theirs


def _tasks(chosen: Sequence[Point]) -> int:
    return len({point.task for point in chosen})


def _error(estimate: Estimate) -> float:
    """The standard error of ln, from a closed 95% interval."""
    return float(np.log(estimate.high / estimate.low)) / (2 * Z95)
