"""Runs whose learning rate is cut on the way, each span between cuts by itself (Fig. 10): a goal belongs to the span
that ends at it or that it lies in; its steps, examples and noise scale are counted from that span's start.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.analysis.crossings import crossings
from experiments.tables.reading import Tables
from experiments.training.learning_rate_cuts import Direction, beginnings, passed


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
