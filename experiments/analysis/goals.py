"""Round values of a metric that the tuned runs pass, for a sweep whose goals nobody has chosen."""

import math

import numpy as np

from experiments.analysis.crossings import cross
from experiments.analysis.learning_rate_choice import grids
from experiments.tables.reading import Tables

MANTISSAS = (1.0, 2.0, 3.0, 5.0, 7.0)
LINEAR_GOALS = 10
FEWEST_BATCH_SIZES = 4
FEWEST_STEPS = 4.0


def choose_goals(tables: Tables) -> list[float]:
    """Goals from easy to hard, each reached by a tuned run at `FEWEST_BATCH_SIZES` batch sizes or more, none in under
    `FEWEST_STEPS` steps.

    A positive metric that falls gets the values 1, 2, 3, 5, 7 of every decade; any other gets about `LINEAR_GOALS`
    round values evenly spaced.
    """
    metric = tables.curves["metric"].to_numpy(float)
    metric = metric[np.isfinite(metric)]
    if not metric.size:
        return []
    low, high = float(metric.min()), float(metric.max())
    candidates = _decades(low, high) if tables.direction == "min" and high > 0 else _even(low, high)
    ordered = sorted(candidates, reverse=tables.direction == "min")
    if not ordered:
        return []
    diverged = set(tables.runs.loc[tables.runs["status"] == "diverged", "run_id"])
    rows = cross(tables, ordered)
    return [goal for goal in ordered if _worth_fitting(rows[rows["goal"] == goal], diverged)]


def _worth_fitting(goal_rows, diverged: set[str]) -> bool:
    tuned = [(grid.steps[grid.best()], grid.reached[grid.best()]) for grid in grids(goal_rows, diverged)]
    arrived = [steps.min() for steps, reached in tuned if reached.all()]
    return len(arrived) >= FEWEST_BATCH_SIZES and min(arrived) >= FEWEST_STEPS


def _decades(low: float, high: float) -> list[float]:
    bottom = low if low > 0 else high * 1e-6
    powers = range(math.floor(math.log10(bottom)), math.ceil(math.log10(high)) + 1)
    values = [float(f"{mantissa}e{power}") for power in powers for mantissa in MANTISSAS]
    return [value for value in values if bottom <= value <= high]


def _even(low: float, high: float) -> list[float]:
    if high <= low:
        return []
    rough = (high - low) / LINEAR_GOALS
    power = 10.0 ** math.floor(math.log10(rough))
    spacing = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough)
    return [round(i * spacing, 12) for i in range(math.ceil(low / spacing), math.floor(high / spacing) + 1)]
