"""Fig. 4, the claim in one picture: B_simple of a run against the B_crit of a tuned sweep, every task."""

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import paper
from experiments.figures.style import COLOURS, GREY, MARKS, PAGE, PALE, log_axis
from experiments.summary import SweepResult, summarise
from experiments.verdict import FACTOR
from noisescale.pareto import Estimate


def figure4(results: Path) -> Figure:
    """Ours in colour with both 95% intervals, hardest goal filled and easiest one hollow; the paper's Table 1 in
    grey."""
    figure = Figure(figsize=(PAGE, 4.45))
    axes = figure.subplots()
    values: list[float] = []
    names = {task.name: i for i, task in enumerate(paper.PAPER_TASKS)}
    for name, row in paper.table1(results).items():
        if row["b_crit"].value == row["b_crit"].value:
            _point(axes, row["b_simple_avg"], row["b_crit"], GREY, MARKS[names[name]], True, f"paper: {name}")
            values += [row["b_simple_avg"].value, row["b_crit"].value]
    sweeps = [sweep for sweep in summarise(results) if sweep.preset != "smoke"]
    sweeps.sort(key=lambda sweep: (sweep.task not in paper.POINTS_OF, sweep.name))
    for i, sweep in enumerate(sweeps):
        colour, marker = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
        for fit, filled in _ends(sweep):
            label = f"{sweep.name} ({sweep.unit}s): {sweep.verdict}" if filled else None
            _point(axes, fit.b_simple_avg, fit.b_crit, colour, marker, filled, label)
            values += [fit.b_simple_avg.value, fit.b_crit.value]
        if not any(filled for _, filled in _ends(sweep)):
            axes.plot([], [], marker, color=PALE, fillstyle="none", label=f"{sweep.name}: not determined")
    low, high = min(values) / 3, max(values) * 3
    line = np.array([low, high])
    axes.fill_between(line, line / FACTOR, line * FACTOR, color="#f0f0f0", zorder=0, linewidth=0)
    axes.plot(line, line, color=PALE, linewidth=0.8, zorder=0)
    for axis, limits in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        log_axis(axis, low, high)
        limits(low, high)
    axes.set_xlabel("B_simple averaged over the run (in the unit of B)")
    axes.set_ylabel("B_crit of the tuned sweep (in the unit of B)")
    axes.set_title(f"Line: equal; band: within a factor of {FACTOR:g}\nhollow: the sweep's easiest goal")
    axes.set_aspect("equal")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), labelspacing=0.35)
    return figure


def _ends(sweep: SweepResult) -> list:
    """The hardest and, if another, the easiest goal at which both are determined."""
    fits = [fit for fit in sweep.determined if fit.b_simple_avg.value > 0 and math.isfinite(fit.b_simple_avg.high)]
    return [(fits[-1], True), *([(fits[0], False)] if len(fits) > 1 else [])] if fits else []


def _point(axes: Axes, x: Estimate, y: Estimate, colour: str, marker: str, filled: bool, label: str | None) -> None:
    bars = [np.array([[_reach(e.value, e.low)], [_reach(e.value, e.high)]]) for e in (x, y)]
    axes.errorbar(
        x.value,
        y.value,
        xerr=bars[0],
        yerr=bars[1],
        fmt="none",
        color=colour,
        elinewidth=0.8,
        zorder=2,
    )
    face = colour if filled else "white"
    axes.plot(x.value, y.value, marker, color=colour, markersize=5.5, markerfacecolor=face, label=label, zorder=3)
    if math.isinf(y.high):
        axes.annotate(
            "", (x.value, y.value * 2.5), (x.value, y.value), arrowprops={"arrowstyle": "->", "color": colour}
        )


def _reach(value: float, end: float) -> float:
    return abs(value - end) if math.isfinite(end) else 0.0
