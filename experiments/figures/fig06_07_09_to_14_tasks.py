"""The paper's figures task by task: its digitised points in grey, our sweep of the same task in colour where there is
one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.analysis import paper
from experiments.analysis.paper import ATARI
from experiments.analysis.sweep_summary import SweepResult, summarise
from experiments.figures.one_sweep import curves, draw_noise
from experiments.figures.pareto_fronts import draw_fronts
from experiments.figures.style import GREY, PAGE, legend_below, log_axis, nothing_yet, number

OURS_OF = {points: ours for ours, points in paper.POINTS_OF.items()}  # of two, the later one
SIZES = ("paper", "small")


def sweep_of(results: Path, task: str | None, sizes: Sequence[str] = SIZES) -> SweepResult | None:
    """Our largest sweep of a task (by default), if one is committed and analysed; smoke sweeps don't count."""
    found = {sweep.preset: sweep for sweep in summarise(results) if sweep.task == task and sweep.preset != "smoke"}
    return next((found[size] for size in (*sizes, *sorted(found)) if size in found), None)


OBSERVATIONS = (
    "The paper's frames\nare observations of 4 frames, as ours: its batches\nare 5 of them from each environment."
)
METRICS = {"AE_SVHN": "loss", "VAE_SVHN": "loss", "BillionWord": "perplexity", "Dota1v1": "TrueSkill"}


def missing(task: str) -> str:
    """What to run for a panel that has no measurement of ours."""
    return f"not measured here yet:\nmake sweep TASK={task}"


def figure6(results: Path) -> Figure:
    """SVHN: the metric against steps and against examples."""
    sweep = sweep_of(results, "svhn")
    return curves(sweep, results) if sweep else _empty("SVHN, SGD: curves", "svhn")


def figure7(results: Path) -> Figure:
    """SVHN with SGD: fronts, and the noise scales against train error."""
    return _fronts_and_noise(results, ["SVHN_SGD"])


def figure9(results: Path) -> Figure:
    """Autoencoder, VAE and language model."""
    return _fronts_and_noise(results, ["AE_SVHN", "VAE_SVHN", "BillionWord"])


def figure10(results: Path) -> Figure:
    """ImageNet, by spans of train error where they were measured; the paper's points are not digitised."""
    sweep = sweep_of(results, "imagenet", ("paper", "spans", "small"))
    if sweep is None:
        return _empty("ImageNet: fronts and noise scales", "imagenet")
    figure = Figure(figsize=(PAGE, 2.9))
    left, right = figure.subplots(1, 2)
    draw_fronts(left, sweep, results, None, f"{sweep.name}: {sweep.tables.describe('data').split(',')[0]}")
    draw_noise(right, sweep)
    legend_below(figure, columns=2)
    return figure


def figure11(results: Path) -> Figure:
    """Atari: fronts of seven games."""
    figure = Figure(figsize=(PAGE, 8.4))
    panels = figure.subplots(4, 2).flat
    for panel, game in zip(panels, ATARI, strict=False):
        _front(panel, results, game)
    nothing_yet(panels[7], "", f"grey: the paper's points, and our fit to them;\ncolour: ours. {OBSERVATIONS}")
    return figure


def figure12(results: Path) -> Figure:
    """Atari: B_crit against the score, from the paper's points, and ours with B_simple where measured."""
    figure = Figure(figsize=(PAGE, 8.4))
    panels = figure.subplots(4, 2).flat
    for panel, game in zip(panels, ATARI, strict=False):
        _noise(panel, results, game)
    nothing_yet(panels[7], "", f"grey: B_crit fitted to the paper's points,\nwith 95% intervals. {OBSERVATIONS}")
    legend_below(figure, columns=2)
    return figure


def figure13(results: Path) -> Figure:
    """Dota 1v1: the paper's points alone."""
    figure = Figure(figsize=(PAGE, 2.7))
    left, right = figure.subplots(1, 2)
    draw_fronts(left, None, results, "Dota1v1", "Dota 1v1, TrueSkill: the paper's points alone")
    rows = paper.refits(results)
    _paper_noise(right, rows[rows["task"] == "Dota1v1"], "Dota1v1")
    right.set_title("the same, B_crit")
    return figure


def figure14(results: Path) -> Figure:
    """CIFAR10, SVHN with Adam, SVHN with SGD, MNIST: fronts above, noise scales below."""
    return _fronts_and_noise(results, ["CIFAR10_momentum", "SVHN_Adam", "SVHN_SGD", "MNIST_SGD"])


def _fronts_and_noise(results: Path, names: Sequence[str]) -> Figure:
    figure = Figure(figsize=(PAGE, 2.75 * len(names)))
    for row, name in zip(figure.subplots(len(names), 2, squeeze=False), names, strict=True):
        _front(row[0], results, name)
        _noise(row[1], results, name)
    legend_below(figure, columns=2)
    return figure


def _metric(name: str) -> str:
    return "mean score" if name in ATARI else METRICS.get(name, "train error")


def _front(panel: Axes, results: Path, name: str) -> None:
    ours = sweep_of(results, OURS_OF[name])
    title = f"{name.replace('_', ', ')}, {_metric(name)}"
    draw_fronts(panel, ours, results, name, f"{title}: {'ours ' + ours.name if ours else 'the paper alone'}")


def _noise(panel: Axes, results: Path, name: str) -> None:
    ours = sweep_of(results, OURS_OF[name])
    rows = paper.refits(results)
    rows = rows[(rows["task"] == name) & (rows["rel_se_Bcrit"] < 1)]
    _paper_noise(panel, rows, name)
    if ours is not None:
        draw_noise(panel, ours, beside=rows)
        return
    panel.set_title(f"{name.replace('_', ', ')}: B_crit")
    panel.text(0.98, 0.03, missing(OURS_OF[name]), transform=panel.transAxes, ha="right", va="bottom", fontsize=6.5)


def _paper_noise(panel: Axes, rows: pd.DataFrame, name: str) -> None:
    reach = np.exp(1.96 * rows["rel_se_Bcrit"])
    error = [rows["B_crit"] * (1 - 1 / reach), rows["B_crit"] * (reach - 1)]
    style = {"color": GREY, "marker": "s", "elinewidth": 0.7, "zorder": 1}
    panel.errorbar(rows["goal"], rows["B_crit"], yerr=error, label="B_crit, the paper's points", **style)
    goals: pd.Series = rows["goal"]
    log_axis(panel.yaxis, rows["B_crit"].min(), rows["B_crit"].max())
    falling = goals.iloc[0] > goals.iloc[-1]
    if falling and goals.min() > 0 and goals.max() > 5 * goals.min():
        log_axis(panel.xaxis, goals.min(), goals.max())
    else:
        panel.xaxis.set_major_locator(MaxNLocator(6))
        panel.xaxis.set_major_formatter(lambda value, _: number(value))
    panel.xaxis.set_inverted(falling)
    panel.set_xlabel(f"{_metric(name)} (better to the right)")
    panel.set_ylabel(f"B_crit ({paper.UNITS.get(name, 'image')}s)")


def _empty(title: str, task: str) -> Figure:
    figure = Figure(figsize=(PAGE, 1.6))
    nothing_yet(figure.subplots(), title, missing(task))
    return figure
