"""Pareto fronts: steps against examples to each goal, with their fits (Figs 7 left, 9, 11 and 14)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import paper
from experiments.analysis.sweep_summary import SweepResult
from experiments.figures.point_labels import Name, Names
from experiments.figures.style import COLUMN, GREY, PALE, legend_below, log_axis, mark, nothing_yet, number, shades
from noisescale.pareto.fit import fit_pareto

GOALS_SHOWN = 7
Corners = list[tuple[float, float]]


def fronts(sweep: SweepResult, results: Path) -> Figure:
    """Our fronts of one sweep, over the paper's where it has the same task."""
    figure = Figure(figsize=(COLUMN * 1.25, COLUMN * 1.1))
    axes = figure.subplots()
    theirs = paper.POINTS_OF.get(sweep.task)
    draw_fronts(axes, sweep, results, theirs)
    legend_below(figure)
    return figure


def draw_fronts(axes: Axes, sweep: SweepResult | None, results: Path, theirs: str | None, title: str = "") -> None:
    """One panel: the paper's points and our refit of them in grey behind ours in colour."""
    corners: Corners = []
    names: list[Name] = []
    if sweep is not None:
        corners, names = _draw_ours(axes, sweep)
    if theirs is not None:
        their_corners, their_names = _draw_paper(axes, paper.points(results), theirs, names_above=sweep is not None)
        corners, names = corners + their_corners, names + their_names
    if not corners:
        nothing_yet(axes, title, "no measurement here or in the paper")
        return
    axes.set_title(
        title or (f"{sweep.name}, goals of {sweep.tables.describe('metric').replace('_', ' ')}" if sweep else "")
    )
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    log_axis(axes.xaxis, low[0], high[0])
    log_axis(axes.yaxis, low[1], high[1])
    axes.set_xlim(low[0] / 1.6, high[0] * 1.6)
    axes.set_ylim(low[1] / 1.6, high[1] * 4)  # room for the goals' names
    axes.set_xlabel("optimizer steps S")
    axes.set_ylabel(f"examples E ({sweep.unit if sweep else paper.UNITS.get(theirs or '', 'image')}s)")
    Names(axes, names)


def spread(items: Sequence, count: int) -> list:
    """At most `count` of them, evenly, the first and the last included."""
    if len(items) <= count:
        return list(items)
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, count).round().astype(int))]


def _draw_paper(axes: Axes, points: pd.DataFrame, theirs: str, names_above: bool) -> tuple[Corners, list[Name]]:
    """Up to seven goals are named, at the right, or above the fronts where ours are named at the right."""
    corners, names = [], []
    rows = points[points["task"] == theirs]
    goals = list(dict.fromkeys(rows["goal"]))
    named = spread(goals, GOALS_SHOWN)
    for index, goal in enumerate(goals):
        mine = rows[rows["goal"] == goal]
        corners += list(zip(mine["steps"], mine["examples"], strict=True))
        label = "the paper's points and a fit" if index == 0 else None
        axes.plot(mine["steps"], mine["examples"], "o", color=PALE, markersize=2.5, zorder=1, label=label)
        if len(mine) < 4:
            continue
        fit = fit_pareto(mine["batch_size"], mine["steps"])
        sizes = np.geomspace(mine["batch_size"].min(), mine["batch_size"].max(), 100)
        axes.plot(fit.steps(sizes), fit.examples(sizes), color=PALE, linewidth=0.8, zorder=1)
        if goal in named:
            end = mine.loc[mine["batch_size"].idxmax() if names_above else mine["steps"].idxmax()]
            names.append(Name(number(goal), end["steps"], end["examples"], GREY, names_above))
    return corners, names


def _draw_ours(axes: Axes, sweep: SweepResult) -> tuple[Corners, list[Name]]:
    corners, names = [], []
    crossings = sweep.crossings
    shown = spread(sweep.met, GOALS_SHOWN)
    for index, (fit, colour) in enumerate(zip(shown, shades(len(shown)), strict=True)):
        tuned = crossings[(crossings["goal"] == fit.goal) & crossings["best"] & (crossings["steps"] > 0)]
        for size, runs in tuned.groupby("batch_size"):
            steps = float(np.exp(np.log(runs["steps"]).mean()))
            arrived = bool(runs["reached"].all())
            axes.plot(
                steps,
                steps * float(size),
                mark(index),
                color=colour,
                zorder=3,
                markerfacecolor=colour if arrived else "none",
            )
            corners.append((steps, steps * float(size)))
        sizes = np.geomspace(tuned["batch_size"].min(), tuned["batch_size"].max(), 200)
        if fit.s_min.value > 0 and np.isfinite(fit.e_min.value):
            steps = fit.s_min.value + fit.e_min.value / sizes
            determined = fit.b_crit_status == "determined"
            axes.plot(steps, steps * sizes, color=colour, zorder=2, linestyle="-" if determined else ":")
            names.append(Name(number(fit.goal), max(steps[0], tuned["steps"].max()), steps[0] * sizes[0], colour))
        elif len(tuned):
            last = tuned.loc[tuned["steps"].idxmax()]
            names.append(Name(number(fit.goal), last["steps"], last["examples"], colour))
    axes.plot([], [], "o-", color=shades(1)[0], label="ours and the fit (hollow: not every seed arrived)")
    return corners, names
