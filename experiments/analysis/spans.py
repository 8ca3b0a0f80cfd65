"""Runs whose learning rate is cut by ten at given values of the metric, and each span between cuts by itself (Fig. 10).

A span ends where the mean of its last `patience` evaluations passes its cut. That is a function of the curve alone, so
the loop, the search and the analysis find the same spans, and a record needs no more than its curve. A goal belongs to
the span that ends at it or that it lies in; its steps, examples and noise scale are counted from that span's start.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.analysis.crossings import crossings
from experiments.tables.reading import Tables

CUT = 0.1
Direction = Literal["min", "max"]


def passed(value: float, cut: float, direction: Direction) -> bool:
    """Whether `value` is at least as good as `cut` (NaN never is)."""
    return value <= cut if direction == "min" else value >= cut


def beginnings(metric: Sequence[float], direction: Direction, cuts: Sequence[float], patience: int) -> list[int]:
    """Indices of the evaluations at which spans begin: 0, and for each cut that was passed the one that passed it."""
    found = [0]
    for end in range(1, len(metric)):
        if len(found) > len(cuts):
            break
        recent = metric[max(end + 1 - patience, found[-1] + 1) : end + 1]
        if len(recent) == patience and passed(float(np.mean(recent)), cuts[len(found) - 1], direction):
            found.append(end)
    return found


def number(goal: float, direction: Direction, cuts: Sequence[float]) -> int:
    """Of the span that `goal` belongs to: how many cuts it lies beyond."""
    return sum(goal != cut and passed(goal, cut, direction) for cut in cuts)


def span(curve: pd.DataFrame, which: int, direction: Direction, cuts: Sequence[float], patience: int) -> pd.DataFrame:
    """A run's `curve` within one span, steps and examples counted from its start.

    The first row's measurements are of the span before, so they are left out. A run that never got there has one row at
    step 1 without a metric: all that is known is that the span would have taken longer than nothing.
    """
    begins = beginnings(curve["metric"].to_list(), direction, cuts, patience)
    if which >= len(begins):
        return curve.iloc[-1:].assign(step=1, examples=0, metric=np.nan, noise_examples=0, noise_steps=0)
    last = begins[which + 1] + 1 if which + 1 < len(begins) else len(curve)
    rows = curve.iloc[begins[which] : last].reset_index(drop=True)
    if which > 0:
        rows[["step", "examples"]] -= rows.loc[0, ["step", "examples"]].astype(int)
        rows.loc[0, ["noise_examples", "noise_steps"]] = 0
    return rows


def steps_to(
    curve: pd.DataFrame, direction: Direction, goals: Sequence[float], cuts: Sequence[float] | None, patience: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """`crossings` of each goal within its own span; both of shape (len(goals),)."""
    if not cuts:
        return _crossings(curve, direction, goals)
    parts = [span(curve, number(goal, direction, cuts), direction, cuts, patience) for goal in goals]
    found = [_crossings(part, direction, [goal]) for part, goal in zip(parts, goals, strict=True)]
    return np.concatenate([steps for steps, _ in found]), np.concatenate([reached for _, reached in found])


def _crossings(
    curve: pd.DataFrame, direction: Direction, goals: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    return crossings(curve["step"].to_numpy(float), curve["metric"].to_numpy(float), direction, goals)


def split(tables: Tables, goals: Sequence[float]) -> Iterator[tuple[Tables, list[float]]]:
    """The tables of each span with the goals that belong to it, in order; all of them at once where nothing is cut."""
    configs = {str(run.run_id): json.loads(str(run.config)) for run in tables.runs.itertuples()}
    cuts = next(iter(configs.values())).get("lr_cuts")
    if not cuts:
        yield tables, list(goals)
        return
    by_run = list(tables.curves.groupby("run_id", sort=False))
    for which in range(len(cuts) + 1):
        own = [goal for goal in goals if number(goal, tables.direction, cuts) == which]
        if own:
            parts = [
                span(rows, which, tables.direction, cuts, configs[str(run)]["stop_patience"]) for run, rows in by_run
            ]
            yield replace(tables, curves=pd.concat(parts, ignore_index=True)), own
