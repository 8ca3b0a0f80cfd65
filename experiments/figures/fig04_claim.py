"""Fig. 4, the claim in one picture: B_simple of a run against the B_crit of a tuned sweep, every task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import paper
from experiments.analysis.skill import FEWEST_TASKS
from experiments.analysis.sweep_summary import SweepResult, summarise
from experiments.analysis.verdict import FACTOR, ratio
from experiments.figures.style import GREY, MARKS, PAGE, PALE, READABLE, log_axis
from noisescale.pareto.fit import Estimate

PANEL = 2.6  # inches: the height of a scatter with its labels
OTHERS = "observations and others"
Pair = tuple[Estimate, Estimate]  # B_simple averaged, B_crit


@dataclass(frozen=True)
class Row:
    """A sweep, or a task of the paper's that we have none of; its mark is the paper's task. `ours` are the goals at
    which both are determined, hardest first; `panel` is what B counts, where enough of our tasks share it."""

    label: str
    panel: str
    marker: str
    colour: str
    theirs: Pair | None
    ours: tuple[Pair, ...] = ()


def figure4(results: Path) -> Figure:
    """Above, the two against each other, a panel a unit; below, their ratio, a line a sweep, which names the marks.
    Ours in colour with 95% intervals, the hardest goal filled and easier ones hollow; the paper's Table 1 in grey;
    dashed, the median of the hardest goals' B_crit."""
    rows = _rows(results)
    panels = sorted({row.panel for row in rows if row.ours}, key=lambda name: (name == OTHERS, name)) or [OTHERS]
    below = 0.175 * len(rows) + 0.9
    figure = Figure(figsize=(PAGE, PANEL + below))
    upper, lower = figure.subfigures(2, 1, height_ratios=(PANEL, below))
    for axes, panel in zip(upper.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _scatter(axes, [row for row in rows if row.panel == panel], panel != OTHERS)
        axes.set_title(panel)
        axes.set_ylabel("B_crit of the tuned sweep")
    _ratios(lower.subplots(), rows)
    return figure


def _rows(results: Path) -> list[Row]:
    sweeps = [sweep for sweep in summarise(results) if sweep.preset != "smoke"]
    table = paper.table1(results)
    tasks = {(sweep.unit, sweep.task) for sweep in sweeps}
    units = [unit for unit, _ in tasks]
    panel_of = {unit: f"{unit}s" for unit in units if units.count(unit) >= FEWEST_TASKS}
    colours = (READABLE[i % len(READABLE)] for i in range(len(sweeps)))
    rows = []
    for task, marker in zip(paper.PAPER_TASKS, MARKS, strict=False):
        pair = table[task.name]["b_simple_avg"], table[task.name]["b_crit"]
        known = pair if not math.isnan(pair[1].value) else None
        ours = [sweep for sweep in sweeps if sweep.task in task.ours]
        for sweep in ours or [None]:
            shared = known if sweep is None or sweep is ours[0] else None
            if sweep is not None:
                panel = panel_of.get(sweep.unit, OTHERS)
                rows.append(Row(_label(sweep), panel, marker, next(colours), shared, _both(sweep)))
            elif shared is not None:
                panel = panel_of.get(paper.unit(results, task.name), "")
                rows.append(Row(f"{task.name}: the paper's", panel, marker, GREY, shared))
        sweeps = [sweep for sweep in sweeps if sweep not in ours]
    free = MARKS[len(paper.PAPER_TASKS) :]
    for i, sweep in enumerate(sweeps):
        panel = panel_of.get(sweep.unit, OTHERS)
        rows.append(Row(_label(sweep), panel, free[i % len(free)], next(colours), None, _both(sweep)))
    return rows


def _label(sweep: SweepResult) -> str:
    return f"{sweep.name}: {sweep.verdict}"


def _both(sweep: SweepResult) -> tuple[Pair, ...]:
    """At the goals at which both are determined, hardest first."""
    fits = [fit for fit in sweep.determined if fit.b_simple_avg.low > 0 and math.isfinite(fit.b_simple_avg.high)]
    return tuple((fit.b_simple_avg, fit.b_crit) for fit in reversed(fits))


def _scatter(axes: Axes, rows: Sequence[Row], with_constant: bool) -> None:
    for row in rows:
        if row.theirs is not None:
            _point(axes, *row.theirs, GREY, row.marker)
        if row.ours:
            x, y = ([pair[i].value for pair in row.ours] for i in (0, 1))
            axes.plot(x, y, row.marker, color=row.colour, markersize=2.5, markerfacecolor="white", markeredgewidth=0.6)
            axes.plot(x, y, color=row.colour, linewidth=0.6, alpha=0.5, zorder=1)
            _point(axes, *row.ours[0], row.colour, row.marker)
    barred = [pair for row in rows for pair in (*row.ours[:1], *([row.theirs] if row.theirs else []))]
    easier = [estimate.value for row in rows for pair in row.ours for estimate in pair]
    ends = [end for pair in barred for estimate in pair for end in (estimate.low, estimate.high) if math.isfinite(end)]
    low, high = min([*easier, *ends], default=1.0) / 1.6, max([*easier, *ends], default=10.0) * 1.6
    line = np.array([low, high])
    axes.fill_between(line, line / FACTOR, line * FACTOR, color="#f0f0f0", zorder=0, linewidth=0)
    axes.plot(line, line, color=PALE, linewidth=0.8, zorder=0)
    for axis, limits in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        log_axis(axis, low, high)
        limits(low, high)
    axes.set_xlabel("B_simple averaged over the run")
    if with_constant:
        constant = float(np.median([row.ours[0][1].value for row in rows if row.ours]))
        axes.axhline(constant, color="#555555", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        said = {"ha": "right", "va": "top", "fontsize": 6.5, "color": "#555555"}
        axes.text(high / 1.15, constant / 1.15, "a constant", **said)
    axes.set_aspect("equal")


def _ratios(axes: Axes, rows: list[Row]) -> None:
    axes.axvspan(1 / FACTOR, FACTOR, color="#f0f0f0", zorder=0, linewidth=0)
    axes.axvline(1, color=PALE, linewidth=0.8, zorder=0)
    found = []
    for y, row in enumerate(rows):
        if row.theirs is not None:
            found.append(row.theirs[0].value / row.theirs[1].value)
            axes.plot(found[-1], y, row.marker, color=GREY, markersize=5, zorder=2)
        for place, pair in enumerate((*row.ours[:1], *row.ours[1:][-1:])):
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
    axes.set_title(f"their ratio, with 95% intervals; band: within a factor of {FACTOR:g}")


def _point(axes: Axes, x: Estimate, y: Estimate, colour: str, marker: str) -> None:
    bars = [np.array([[_reach(e.value, e.low)], [_reach(e.value, e.high)]]) for e in (x, y)]
    axes.errorbar(x.value, y.value, xerr=bars[0], yerr=bars[1], fmt="none", color=colour, elinewidth=0.8, zorder=2)
    axes.plot(x.value, y.value, marker, color=colour, markersize=5, zorder=3)
    if math.isinf(y.high):
        axes.annotate(
            "", (x.value, y.value * 2.5), (x.value, y.value), arrowprops={"arrowstyle": "->", "color": colour}
        )


def _reach(value: float, end: float) -> float:
    return abs(value - end) if math.isfinite(end) else 0.0
