"""Fig. 4, the claim in one picture: B_simple of a run against the B_crit of a tuned sweep, every task."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import paper
from experiments.analysis.goal_fit import GoalFit
from experiments.analysis.sweep_summary import SweepResult, summarise
from experiments.analysis.verdict import FACTOR, ratio
from experiments.figures.style import GREY, MARKS, PAGE, PALE, READABLE, log_axis
from noisescale.pareto.fit import Estimate

Pair = tuple[Estimate, Estimate]  # B_simple averaged, B_crit


@dataclass(frozen=True)
class Row:
    """A task: the paper's pair and ours, of the hardest and the easiest goal; its mark is the paper's task."""

    label: str
    marker: str
    colour: str
    theirs: Pair | None
    ours: tuple[Pair, ...] = ()


def figure4(results: Path) -> Figure:
    """Left, the two against each other; right, their ratio, a line a sweep, which names the marks. Ours in colour
    with 95% intervals, hardest goal filled and easiest one hollow; the paper's Table 1 in grey."""
    rows = _rows(results)
    figure = Figure(figsize=(PAGE, max(3.4, 0.175 * len(rows) + 0.9)))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _scatter(left, rows)
    _ratios(right, rows)
    return figure


def _rows(results: Path) -> list[Row]:
    sweeps = [sweep for sweep in summarise(results) if sweep.preset != "smoke"]
    table = paper.table1(results)
    colours = (READABLE[i % len(READABLE)] for i in range(len(sweeps)))
    rows = []
    for task, marker in zip(paper.PAPER_TASKS, MARKS, strict=False):
        pair = table[task.name]["b_simple_avg"], table[task.name]["b_crit"]
        known = pair if not math.isnan(pair[1].value) else None
        ours = [sweep for sweep in sweeps if sweep.task in task.ours]
        for sweep in ours or [None]:
            shared = known if sweep is None or sweep is ours[0] else None
            if sweep is not None:
                rows.append(Row(_label(sweep), marker, next(colours), shared, _ends(sweep)))
            elif shared is not None:
                rows.append(Row(f"{task.name}: the paper's", marker, GREY, shared))
        sweeps = [sweep for sweep in sweeps if sweep not in ours]
    free = MARKS[len(paper.PAPER_TASKS) :]
    rows += [Row(_label(s), free[i % len(free)], next(colours), None, _ends(s)) for i, s in enumerate(sweeps)]
    return rows


def _label(sweep: SweepResult) -> str:
    return f"{sweep.name}: {sweep.verdict}"


def _ends(sweep: SweepResult) -> tuple[Pair, ...]:
    """The hardest and, if another, the easiest goal at which both are determined."""
    fits = [fit for fit in sweep.determined if fit.b_simple_avg.value > 0 and math.isfinite(fit.b_simple_avg.high)]
    chosen: list[GoalFit] = [fits[-1], *fits[: len(fits) > 1]] if fits else []
    return tuple((fit.b_simple_avg, fit.b_crit) for fit in chosen)


def _scatter(axes: Axes, rows: list[Row]) -> None:
    values = []
    for row in rows:
        if row.theirs is not None:
            values.append(row.theirs)
            _point(axes, *row.theirs, GREY, row.marker, True)
        for place, pair in enumerate(row.ours):
            values.append(pair)
            _point(axes, *pair, row.colour, row.marker, place == 0)
    numbers = [estimate.value for pair in values for estimate in pair]
    low, high = min(numbers) / 3, max(numbers) * 3
    line = np.array([low, high])
    axes.fill_between(line, line / FACTOR, line * FACTOR, color="#f0f0f0", zorder=0, linewidth=0)
    axes.plot(line, line, color=PALE, linewidth=0.8, zorder=0)
    for axis, limits in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        log_axis(axis, low, high)
        limits(low, high)
    axes.set_xlabel("B_simple averaged over the run\n(images, tokens or observations, as B)")
    axes.set_ylabel("B_crit of the tuned sweep (as B)")
    axes.set_title("filled: hardest goal; hollow: easiest\ngrey: the paper's Table 1; line: equal")
    axes.set_aspect("equal")


def _ratios(axes: Axes, rows: list[Row]) -> None:
    axes.axvspan(1 / FACTOR, FACTOR, color="#f0f0f0", zorder=0, linewidth=0)
    axes.axvline(1, color=PALE, linewidth=0.8, zorder=0)
    found = []
    for y, row in enumerate(rows):
        if row.theirs is not None:
            found.append(row.theirs[0].value / row.theirs[1].value)
            axes.plot(found[-1], y, row.marker, color=GREY, markersize=5, zorder=2)
        for place, pair in enumerate(row.ours):
            estimate = ratio(*pair)
            found += [estimate.value, estimate.low, estimate.high]
            at = y + 0.22 * place
            bars = np.array([[estimate.value - estimate.low], [estimate.high - estimate.value]])
            axes.errorbar(estimate.value, at, xerr=bars, fmt="none", color=row.colour, elinewidth=0.8, zorder=2)
            face = "white" if place else row.colour
            axes.plot(estimate.value, at, row.marker, color=row.colour, markersize=5, markerfacecolor=face, zorder=3)
        if row.theirs is None and not row.ours:
            axes.text(1, y, "not determined", ha="center", va="center", fontsize=6.5, color="#555555")
    log_axis(axes.xaxis, min(found), max(found))
    axes.set_xlim(min(found) / 1.4, max(found) * 1.4)
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlabel("B_simple averaged / B_crit")
    axes.set_ylabel("sweep: verdict")
    axes.set_title(f"their ratio, with 95% intervals\nband: within a factor of {FACTOR:g}")


def _point(axes: Axes, x: Estimate, y: Estimate, colour: str, marker: str, filled: bool) -> None:
    bars = [np.array([[_reach(e.value, e.low)], [_reach(e.value, e.high)]]) for e in (x, y)]
    axes.errorbar(x.value, y.value, xerr=bars[0], yerr=bars[1], fmt="none", color=colour, elinewidth=0.8, zorder=2)
    face = colour if filled else "white"
    axes.plot(x.value, y.value, marker, color=colour, markersize=5, markerfacecolor=face, zorder=3)
    if math.isinf(y.high):
        axes.annotate(
            "", (x.value, y.value * 2.5), (x.value, y.value), arrowprops={"arrowstyle": "->", "color": colour}
        )


def _reach(value: float, end: float) -> float:
    return abs(value - end) if math.isfinite(end) else 0.0
