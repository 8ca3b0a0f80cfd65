"""Figs 8, 16, 18 and 19: model size, adaptive batches, autocorrelation, test goals."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis.sweep_summary import summarise
from experiments.figures.fig06_07_09_to_14_tasks import missing, sweep_of
from experiments.figures.one_sweep import b_simple_along, metric_name, tuned_runs
from experiments.figures.pareto_fronts import GOALS_SHOWN, draw_fronts, spread
from experiments.figures.style import (
    COLOURS,
    GREY,
    PAGE,
    PALE,
    legend_below,
    log_axis,
    mark,
    nothing_yet,
    number,
    shades,
)

GAMMAS = (1.0, 0.9, 0.5, 0.1)
ADAPTIVE = "python -m experiments.cli.adaptive task=svhn preset=adaptive"
LAGS = "python -m experiments.cli.autocorrelation task=svhn_adam preset=autocorrelation"


def figure8(results: Path) -> Figure:
    """B_simple of language models of several sizes, against perplexity and against tokens."""
    sweeps = [s for s in summarise(results) if s.task.startswith("lm") and s.preset != "smoke"]
    figure = Figure(figsize=(PAGE, 3.2))
    left, right = figure.subplots(1, 2, sharey=True)
    if not sweeps:
        for panel, against in ((left, "perplexity"), (right, "tokens")):
            nothing_yet(panel, f"Language models: B_simple against {against}", missing("lm"))
        return figure
    sweeps.sort(key=lambda sweep: int(sweep.tables.describe("parameters")))
    levels, sizes, tokens = [], [], []
    for i, sweep in enumerate(sweeps):
        along, ratios = b_simple_along(sweep)
        style = {"color": COLOURS[i % len(COLOURS)], "marker": mark(i), "markersize": 3, "linewidth": 0.9}
        values = [ratio.value for ratio in ratios]
        label = f"{sweep.name}, {int(sweep.tables.describe('parameters')):,} parameters"
        left.plot(along, values, label=label, **style)
        curves = sweep.tables.curves[sweep.tables.curves["run_id"].isin(tuned_runs(sweep)["run_id"])]
        seen = [_tokens_to(curves, level) for level in along]
        right.plot(seen, values, **style)
        levels, sizes, tokens = levels + along, sizes + values, tokens + seen
    log_axis(left.yaxis, min(sizes), max(sizes))
    log_axis(left.xaxis, min(levels), max(levels))
    left.set_xlabel(f"{metric_name(sweeps[0])} (better to the right)")
    left.xaxis.set_inverted(True)
    left.set_ylabel("B_simple (tokens)")
    log_axis(right.xaxis, min(tokens), max(tokens))
    right.set_xlabel("tokens processed (the cheapest tuned run)")
    legend_below(figure, columns=2)
    return figure


def _tokens_to(curves, level: float) -> float:
    return float(curves.loc[(curves["metric"] <= level) & (curves["step"] > 0), "examples"].min())


def figure16(results: Path) -> Figure:
    """Left, fixed and adaptive batch sizes, measured; right, in units of S_min and E_min over theory's fronts."""
    figure = Figure(figsize=(PAGE, 2.9))
    left, right = figure.subplots(1, 2)
    excess = np.geomspace(0.02, 50, 200)
    for gamma, dashes in zip(GAMMAS, ("-", "--", "-.", ":"), strict=True):
        right.plot(1 + excess, 1 + gamma / excess, dashes, color=GREY, label=f"theory, γ = {gamma:g}")
    right.set_title("S/S_min − 1 = γ/(E/E_min − 1)")
    sweep = sweep_of(results, "svhn")
    path = sweep.tables.folder / "adaptive.csv" if sweep else None
    if sweep is None or path is None or not path.exists():
        nothing_yet(left, "Adaptive against fixed batch size, SVHN", missing("svhn") + f"\n{ADAPTIVE}")
    else:
        table = pd.read_csv(path)
        draw_fronts(left, sweep, results, None, f"{sweep.name}; stars: B = √(r B_simple)")
        shown = spread(sweep.met, GOALS_SHOWN)
        for fit, colour in zip(shown, shades(len(shown)), strict=True):
            rows = table[(table["goal"] == fit.goal) & table["reached"]]
            left.plot(rows["steps"], rows["examples"], "*", color=colour, markersize=8, mec="black", mew=0.5, zorder=4)
            units = rows["steps"] / fit.s_min.value, rows["examples"] / fit.e_min.value
            right.plot(*units, "*", color=colour, markersize=6, label=f"measured, to {number(fit.goal)}")
    log_axis(right.xaxis, 1.0, 20.0)
    log_axis(right.yaxis, 1.0, 20.0)
    right.set_xlim(0.95, 20)
    right.set_ylim(0.95, 20)
    right.set_xlabel("steps S/S_min")
    right.set_ylabel("examples E/E_min")
    right.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=6.5)
    return figure


def figure18(results: Path) -> Figure:
    """Autocorrelation of the true gradient along a run, by default SVHN's under Adam."""
    figure = Figure(figsize=(PAGE * 0.6, 2.7))
    axes = figure.subplots()
    found = sorted(path for path in results.glob("*/autocorrelation.csv") if not path.parent.name.endswith("-smoke"))
    chosen = next((path for path in found if path.parent.name.startswith("svhn_adam-")), found[0] if found else None)
    if chosen is None:
        nothing_yet(axes, "Autocorrelation of the gradient under Adam, SVHN", f"not measured here yet:\n{LAGS}")
        return figure
    table = pd.read_csv(chosen)
    for i, (goal, rows) in enumerate(table.groupby("goal", sort=False)):
        value, low, high = (rows[f"correlation{end}"].to_numpy(float) for end in ("", "_low", "_high"))
        style = {"color": COLOURS[i % len(COLOURS)], "marker": mark(i), "label": f"from goal {goal:g}"}
        axes.errorbar(rows["lag"], value, yerr=[value - low, high - value], elinewidth=0.8, **style)
    first = table.iloc[0]
    if np.isfinite(first["beta1"]):
        memory = 1 / (1 - first["beta1"])
        label = f"1/(1 − β₁) = {memory:.3g}, what Adam averages over"
        axes.axvline(memory, color=GREY, linestyle=":", linewidth=0.9, label=label)
    axes.axhline(0, color=PALE, linewidth=0.7)
    log_axis(axes.xaxis, table["lag"].min(), table["lag"].max())
    axes.set_title(f"{chosen.parent.name}, B = {first['batch_size']:,.0f}, learning rate {first['lr']:g}")
    axes.set_xlabel("steps apart, τ")
    axes.set_ylabel("⟨G(t)·G(t+τ)⟩ / ⟨|G|²⟩")
    legend_below(figure)
    return figure


def figure19(results: Path) -> Figure:
    """Fig. 14 with goals of the test metric."""
    del results
    return _not_yet("Fig. 14 with test goals: our curves record the training metric only")


def _not_yet(title: str) -> Figure:
    figure = Figure(figsize=(PAGE, 1.2))
    nothing_yet(figure.subplots(), title, "not measured here yet, and the paper's points are not digitised")
    return figure
