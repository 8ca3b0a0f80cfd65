"""When a run's metric crosses a goal, read off an isotonic regression of its curve.

A running minimum of a noisy curve is early and an exponential average is late, by how much depends on a decay picked
by hand. The monotone curve nearest to the measured one in least squares has neither fault and nothing to pick.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from experiments.tables.reading import Tables

COLUMNS = ["goal", "batch_size", "lr", "seed", "run_id", "steps", "examples", "reached"]


def crossings(
    step: NDArray[np.float64],
    metric: NDArray[np.float64],
    direction: Literal["min", "max"],
    goals: Sequence[float],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Steps to each goal, and whether it was reached.

    The monotone fit through the finite values of `metric`, shape (n,), at `step`, shape (n,), rising from 0 or more,
    is interpolated linearly in log(step) (in step itself before the first one). A goal that is met at step 0 takes 0
    steps; one that is never met gets the last step of the curve and False: a lower bound. Both results have shape
    (len(goals),).
    """
    last = float(step[-1]) if len(step) else 0.0
    steps, reached = np.full(len(goals), last), np.zeros(len(goals), bool)
    step, curve = monotone(step, metric, direction)
    sign = 1.0 if direction == "min" else -1.0
    curve = sign * curve
    for i, goal in enumerate(goals):
        below = np.flatnonzero(curve <= sign * goal)
        if below.size:
            steps[i], reached[i] = _between(step, curve, int(below[0]), sign * goal), True
    return steps, reached


def monotone(
    step: NDArray[np.float64], metric: NDArray[np.float64], direction: Literal["min", "max"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The steps with a finite metric, and the monotone curve through those that is nearest in least squares."""
    finite = np.isfinite(metric)
    if not finite.any():
        return step[:0], metric[:0]
    return step[finite], isotonic_regression(metric[finite], increasing=direction == "max").x


def _between(step: NDArray[np.float64], curve: NDArray[np.float64], first: int, goal: float) -> float:
    """Where the falling `curve` passes `goal`, which it is below at index `first` for the first time."""
    if first == 0:
        return float(step[0])
    before, after = step[first - 1], step[first]
    share = (curve[first - 1] - goal) / (curve[first - 1] - curve[first])
    if before == 0:
        return float(share * after)
    return float(before * (after / before) ** share)


def cross(tables: Tables, goals: Sequence[float]) -> pd.DataFrame:
    """A row a (goal, run), in the order of `goals`: columns `COLUMNS`; `steps` may be fractional, `examples` =
    batch_size · `steps`."""
    curves = {str(run): rows for run, rows in tables.curves.groupby("run_id", sort=False)}
    empty = tables.curves.iloc[:0]
    parts = []
    for run in tables.runs.itertuples():
        rows = curves.get(str(run.run_id), empty)
        steps, reached = crossings(
            rows["step"].to_numpy(float), rows["metric"].to_numpy(float), tables.direction, goals
        )
        parts.append(
            pd.DataFrame(
                {
                    "goal": goals,
                    "batch_size": run.batch_size,
                    "lr": run.lr,
                    "seed": run.seed,
                    "run_id": run.run_id,
                    "steps": steps,
                    "reached": reached,
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table["examples"] = table["batch_size"] * table["steps"]
    rank = {goal: i for i, goal in enumerate(goals)}
    order = table.assign(rank=table["goal"].map(rank)).sort_values(["rank", "batch_size", "lr", "seed"], kind="stable")
    return table.loc[order.index, COLUMNS].reset_index(drop=True)
