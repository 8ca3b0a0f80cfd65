"""What one sweep looks like: its curves (Fig. 6), its noise scales (Fig. 7 right), its learning rates (Fig. 5 left)."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.analysis.crossings import cross
from experiments.analysis.goal_fit import simple_curves
from experiments.analysis.noise_at_goal import at_steps
from experiments.analysis.sweep_summary import SweepResult
from experiments.figures.pareto_fronts import spread
from experiments.figures.style import (
    B_CRIT,
    B_NOISE,
    B_SIMPLE,
    COLUMN,
    LINE_SEARCH,
    PAGE,
    PALE,
    legend_below,
    log_axis,
    mark,
    number,
    shades,
    whiskers,
)
from noisescale.pareto.fit import Estimate

LEVELS = 24
SEED_ALPHA = 0.8


def curves(sweep: SweepResult, results: Path) -> Figure:
    """The metric of the tuned runs against steps and against examples, a colour a batch size, a line a seed."""
    del results
    figure = Figure(figsize=(PAGE, 2.6))
    panels = figure.subplots(1, 2, sharey=True)
    tuned = tuned_runs(sweep)
    sizes = sorted(tuned["batch_size"].unique())
    for panel, column in zip(panels, ("step", "examples"), strict=True):
        for size, colour in zip(sizes, shades(len(sizes)), strict=True):
            for i, run in enumerate(tuned.loc[tuned["batch_size"] == size, "run_id"]):
                rows = sweep.tables.curves[(sweep.tables.curves["run_id"] == run) & (sweep.tables.curves["step"] > 0)]
                label = f"{size:,}" if i == 0 else None
                panel.plot(rows[column], rows["metric"], color=colour, linewidth=0.8, alpha=SEED_ALPHA, label=label)
        shown = sweep.tables.curves[
            sweep.tables.curves["run_id"].isin(tuned["run_id"]) & (sweep.tables.curves["step"] > 0)
        ]
        log_axis(panel.xaxis, shown[column].min(), shown[column].max())
    metric_axis(panels[0].yaxis, sweep, shown["metric"])
    for fit in sweep.fits:
        for panel in panels:
            panel.axhline(fit.goal, color="#777777", linewidth=0.6, linestyle=(0, (5, 3)), zorder=1)
    panels[0].set_ylabel(metric_name(sweep))
    panels[0].set_xlabel("optimizer steps S")
    panels[1].set_xlabel(f"examples E ({sweep.unit}s)")
    panels[1].legend(title=f"B ({sweep.unit}s)", loc="center left", bbox_to_anchor=(1.01, 0.5), title_fontsize=7.5)
    figure.suptitle(f"{sweep.name}: tuned runs, every seed; dashed: the goals", fontsize=8.5)
    return figure


def noise(sweep: SweepResult, results: Path) -> Figure:
    """B_crit, B_simple and, where it was measured, B_noise against the metric, with 95% intervals."""
    del results
    figure = Figure(figsize=(COLUMN * 1.3, COLUMN * 1.15))
    draw_noise(figure.subplots(), sweep)
    legend_below(figure)
    return figure


def draw_noise(axes: Axes, sweep: SweepResult, beside: pd.DataFrame | None = None) -> None:
    """One panel of it; `beside` are the paper's refits (columns goal, B_crit) that are in the panel already."""
    goals = [fit.goal for fit in sweep.fits]
    levels, along = b_simple_along(sweep)
    axes.fill_between(levels, [r.low for r in along], [r.high for r in along], color=B_SIMPLE, alpha=0.18, linewidth=0)
    if levels:
        axes.plot(levels, [r.value for r in along], color=B_SIMPLE, label="B_simple, runs tuned for the hardest goal")
    own = [fit for fit in sweep.fits if fit.b_simple.value > 0]
    label = "B_simple at the goal, runs tuned for it"
    axes.plot([f.goal for f in own], [f.b_simple.value for f in own], "D", color=B_SIMPLE, mfc="none", label=label)
    whiskers(axes, goals, [fit.b_simple_avg for fit in sweep.fits], B_SIMPLE, "o", "B_simple averaged up to the goal")
    whiskers(axes, goals, [fit.b_noise for fit in sweep.fits], B_NOISE, "^", "B_noise at the goal")
    local = sweep.tables.folder / "local_noise.csv"
    if local.exists():
        points = pd.read_csv(local).query("quantity == 'line search' and determined")
        found = [Estimate(point.value, point.low, point.high) for point in points.itertuples()]
        whiskers(axes, points["goal"].to_list(), found, LINE_SEARCH, "v", "B_noise, line searches of one run")
    determined = [fit for fit in sweep.fits if fit.b_crit_status == "determined"]
    whiskers(axes, [f.goal for f in determined], [f.b_crit for f in determined], B_CRIT, "s", "B_crit to the goal")
    missing = len(sweep.fits) - len(determined)
    values = [y for line in axes.lines for y in np.atleast_1d(line.get_ydata()) if np.isfinite(y) and y > 0]
    if values:
        log_axis(axes.yaxis, min(values), max(values))
    metric_axis(axes.xaxis, sweep, pd.Series([*goals, *levels, *([] if beside is None else beside["goal"])]))
    axes.set_xlabel(f"{metric_name(sweep)} (better to the right)")
    axes.set_ylabel(f"batch size ({sweep.unit}s)")
    axes.set_title(sweep.name + (f"\nB_crit not determined at {missing} of {len(goals)} goals" if missing else ""))


def learning_rates(sweep: SweepResult, results: Path) -> Figure:
    """The best learning rate at every batch size, for the easiest, a middle and the hardest goal, among all that were
    tried."""
    del results
    figure = Figure(figsize=(COLUMN * 1.25, COLUMN))
    draw_learning_rates(figure.subplots(), sweep)
    return figure


def draw_learning_rates(axes: Axes, sweep: SweepResult) -> None:
    """One panel of it."""
    crossings = sweep.crossings
    tried = sweep.tables.runs[["batch_size", "lr"]].drop_duplicates()
    axes.plot(tried["batch_size"], tried["lr"], ".", color=PALE, markersize=3, label="tried")
    shown = spread(sweep.met, 3)
    for i, (fit, colour) in enumerate(zip(shown, shades(len(shown)), strict=True)):
        best = crossings[(crossings["goal"] == fit.goal) & crossings["best"] & crossings["reached"]]
        best = best.groupby("batch_size", as_index=False)["lr"].first()
        label = f"best to {metric_name(sweep)} {number(fit.goal)}"
        axes.plot(
            best["batch_size"],
            best["lr"],
            color=colour,
            marker=mark(i),
            markersize=7 - 2 * i,
            linewidth=0.8,
            label=label,
        )
    log_axis(axes.xaxis, tried["batch_size"].min(), tried["batch_size"].max())
    log_axis(axes.yaxis, tried["lr"].min(), tried["lr"].max())
    axes.set_xlabel(f"batch size B ({sweep.unit}s)")
    axes.set_ylabel("learning rate")
    rates = tried.groupby("batch_size").size()
    alone = [number(size) for size in rates.index[rates == 1]]
    where = "each batch size" if len(alone) == len(rates) else f"B = {', '.join(alone)}"
    axes.set_title(sweep.name + (f"\nnot tuned: one learning rate tried at {where}" if alone else ""))
    axes.legend(loc="best")


def tuned_runs(sweep: SweepResult) -> pd.DataFrame:
    """Rows of `runs` at each batch size's best learning rate for the hardest goal that it reached (or, if none, the
    hardest)."""
    best = sweep.crossings[sweep.crossings["best"]]
    parts = []
    for size, rows in best.groupby("batch_size"):
        arrived = [f.goal for f in sweep.fits if rows.loc[rows["goal"] == f.goal, "reached"].all()]
        goal = arrived[-1] if arrived else sweep.fits[-1].goal
        lr = rows.loc[rows["goal"] == goal, "lr"].iloc[0]
        runs = sweep.tables.runs
        parts.append(runs[(runs["batch_size"] == size) & np.isclose(runs["lr"], lr, rtol=1e-6)])
    return pd.concat(parts)


def b_simple_along(sweep: SweepResult):
    """B_simple of the tuned runs at metric levels from the first evaluations to the hardest goal; (levels, ratios)."""
    tuned = tuned_runs(sweep)
    tables = type(sweep.tables)(sweep.tables.folder, tuned, sweep.tables.curves)
    early = sweep.tables.curves[
        sweep.tables.curves["run_id"].isin(tuned["run_id"]) & (sweep.tables.curves["step"] == 0)
    ]
    first, last = float(early["metric"].median()), sweep.fits[-1].goal
    levels = np.geomspace(first, last, LEVELS + 1)[1:] if first > 0 < last else np.linspace(first, last, LEVELS + 1)[1:]
    rows = cross(tables, list(levels))
    kept, ratios = [], []
    for level in levels:
        arrived = rows[(rows["goal"] == level) & rows["reached"] & (rows["steps"] > 0)]
        ratio = at_steps(simple_curves(sweep.tables, arrived), arrived["steps"].to_list())
        if ratio.determined:
            kept.append(float(level))
            ratios.append(ratio)
    return kept, ratios


def metric_name(sweep: SweepResult) -> str:
    return sweep.tables.describe("metric").replace("_", " ")


def metric_axis(axis, sweep: SweepResult, values: pd.Series) -> None:
    """Logarithmic for a metric that falls through a factor of five or more; as x, better to the right."""
    values = values[np.isfinite(values) & (values > 0 if sweep.tables.direction == "min" else True)]
    low, high = float(values.min()), float(values.max())
    if sweep.tables.direction == "min" and high > 5 * low:
        log_axis(axis, low, high)
    else:
        axis.set_major_locator(MaxNLocator(5))
    if sweep.tables.direction == "min" and axis.axis_name == "x":
        axis.set_inverted(True)
