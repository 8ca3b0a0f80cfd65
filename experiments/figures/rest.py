"""Figs 8, 16, 18 and 19: model size, adaptive batches, autocorrelation, test goals."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import COLOURS, PAGE, log_axis, mark, nothing_yet
from experiments.figures.sweeps import b_simple_along, metric_name, tuned_runs
from experiments.figures.tasks import missing
from experiments.summary import summarise

GAMMAS = (1.0, 0.9, 0.5, 0.1)


def figure8(results: Path) -> Figure:
    """B_simple of language models of several sizes, against perplexity and against tokens."""
    sweeps = [s for s in summarise(results) if s.task.startswith("lm") and s.preset != "smoke"]
    figure = Figure(figsize=(PAGE, 2.8))
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
    left.legend(loc="best", fontsize=6.5)
    return figure


def _tokens_to(curves, level: float) -> float:
    return float(curves.loc[(curves["metric"] <= level) & (curves["step"] > 0), "examples"].min())


def figure16(results: Path) -> Figure:
    """Left, fixed against adaptive batch sizes, measured; right, the fronts that theory predicts for a given γ."""
    del results
    figure = Figure(figsize=(PAGE, 2.7))
    left, right = figure.subplots(1, 2)
    nothing_yet(left, "Adaptive against fixed batch size, SVHN", "not measured here yet")
    excess = np.geomspace(0.02, 50, 200)
    for gamma, colour in zip(GAMMAS, COLOURS, strict=False):
        right.plot(1 + excess, 1 + gamma / excess, color=colour, label=f"γ = {gamma:g}")
    log_axis(right.xaxis, 1.0, 20.0)
    log_axis(right.yaxis, 1.0, 20.0)
    right.set_xlim(0.95, 20)
    right.set_ylim(0.95, 20)
    right.set_xlabel("steps S/S_min")
    right.set_ylabel("examples E/E_min")
    right.set_title("S/S_min − 1 = γ/(E/E_min − 1); γ = 1: fixed B")
    right.legend()
    return figure


def figure18(results: Path) -> Figure:
    """Autocorrelation of gradients under Adam."""
    del results
    return _not_yet("Autocorrelation of gradients under Adam, SVHN")


def figure19(results: Path) -> Figure:
    """Fig. 14 with goals of the test metric."""
    del results
    return _not_yet("Fig. 14 with test goals: our curves record the training metric only")


def _not_yet(title: str) -> Figure:
    figure = Figure(figsize=(PAGE, 1.2))
    nothing_yet(figure.subplots(), title, "not measured here yet, and the paper's points are not digitised")
    return figure
