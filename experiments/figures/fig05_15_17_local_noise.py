"""Figs 5, 15 and 17: what `temperature` and `local_noise` measured at points of one run.

They show SVHN, as the paper does, where it was measured, else the first sweep that was.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from experiments.figures.fig06_07_09_to_14_tasks import missing, sweep_of
from experiments.figures.one_sweep import draw_learning_rates
from experiments.figures.style import COLOURS, PAGE, log_axis, mark, nothing_yet, shades, whiskers
from experiments.tasks import TASKS
from noisescale.pareto.fit import Estimate

CUTS = {"none": "as before", "lr": "ε / 16", "batch": "16 B", "both": "ε / 4, 4 B"}


def figure5(results: Path) -> Figure:
    """Left, SVHN's best learning rate against B; right, what the best step along gradients of B examples gains."""
    figure = Figure(figsize=(PAGE, 2.9))
    left, right = figure.subplots(1, 2)
    sweep = sweep_of(results, "svhn")
    if sweep is None:
        nothing_yet(left, "SVHN: best learning rate", missing("svhn"))
    else:
        draw_learning_rates(left, sweep)
    draw_line_searches(right, results)
    return figure


def figure15(results: Path) -> Figure:
    """B_simple after the temperature ε/B is cut 16-fold through ε, B or both."""
    figure = Figure(figsize=(PAGE, 2.7))
    axes = figure.subplots()
    name, table = _table(results, "temperature.csv")
    if table is None:
        nothing_yet(axes, "Temperature cut 16-fold", _command("temperature"))
        return figure
    axes.set_title(f"{name}: the temperature ε/B cut 16-fold, in three ways")
    low, high = _range(table["b_simple"])
    for i, (goal, rows) in enumerate(table.groupby("goal", sort=False)):
        x = [list(CUTS).index(cut) + 0.08 * i for cut in rows["cut"]]
        estimates = [Estimate(r.b_simple, r.b_simple_low, r.b_simple_high) for r in rows.itertuples()]
        whiskers(axes, x, estimates, COLOURS[i % len(COLOURS)], mark(i), f"from goal {goal:g}")
        uncut = float(rows.loc[rows["cut"] == "none", "b_simple"].iloc[0])
        axes.plot([1, len(CUTS) - 0.7], [16 * uncut] * 2, color=COLOURS[i % len(COLOURS)], linestyle=":", linewidth=0.9)
        ends = [estimate.high for estimate in estimates if np.isfinite(estimate.high)]
        high = max(high, 20 * uncut, *ends)
    log_axis(axes.yaxis, low, high)
    axes.set_ylim(low / 2, high * 1.5)
    axes.set_xticks(range(len(CUTS)), list(CUTS.values()))
    axes.set_ylabel(f"B_simple ({_unit(name)}s)")
    axes.set_xlabel("how it was cut (dotted: 16 times the uncut, where B_simple goes as 1/T)")
    axes.legend(loc="lower right")
    return figure


def figure17(results: Path) -> Figure:
    """The line search's best step over the step that the run takes, by batch size."""
    figure = Figure(figsize=(PAGE * 0.6, 2.7))
    axes = figure.subplots()
    name, table = _table(results, "line_searches.csv")
    if table is None:
        nothing_yet(axes, "Line-search optimal step over the actual step", _command("local_noise"))
        return figure
    axes.set_title(f"{name}: line searches, 95% intervals")
    ratios = (table["step"] / table["lr"]).groupby([table["goal"], table["batch_size"]]).agg(["mean", "sem", "count"])
    goals = list(dict.fromkeys(table["goal"]))
    for i, (goal, colour) in enumerate(zip(goals, shades(len(goals)), strict=True)):
        rows = ratios.loc[goal]
        mean, error = rows["mean"].to_numpy(float), _reach(rows)
        axes.errorbar(rows.index, mean, yerr=error, color=colour, marker=mark(i), label=f"{goal:g}")
    axes.axhline(1, color="#555555", linewidth=0.8, linestyle=":")
    log_axis(axes.xaxis, *_range(table["batch_size"]))
    log_axis(axes.yaxis, *_range(ratios["mean"]))
    axes.set_xlabel(f"batch size of the gradient ({_unit(name)}s)")
    axes.set_ylabel("best step / step taken")
    axes.legend(title="goal", loc="center left", bbox_to_anchor=(1.0, 0.5), title_fontsize=7.5)
    return figure


def draw_line_searches(axes: Axes, results: Path) -> None:
    """ΔL(B) of the best step, with the fitted ΔL_max/(1 + B_noise/B), at each goal (the right of Fig. 5)."""
    (name, searches), (_, fits) = _table(results, "line_searches.csv"), _table(results, "local_noise.csv")
    if searches is None or fits is None:
        nothing_yet(axes, "Decrease of the loss by one best step", _command("local_noise"))
        return
    axes.set_title(f"{name}: line searches, 95% intervals, B_noise fitted")
    goals = list(dict.fromkeys(searches["goal"]))
    for i, (goal, colour) in enumerate(zip(goals, shades(len(goals)), strict=True)):
        rows = searches[searches["goal"] == goal].groupby("batch_size")["decrease"].agg(["mean", "sem", "count"])
        mean = rows["mean"].astype(float)
        style = {"color": colour, "marker": mark(i), "linestyle": "none", "elinewidth": 0.8, "label": f"{goal:g}"}
        axes.errorbar(mean.index, mean, yerr=_reach(rows), **style)
        fit = fits[(fits["goal"] == goal) & (fits["quantity"] == "line search")].iloc[0]
        if np.isfinite(fit["value"]):
            sizes = np.geomspace(mean.index.min(), mean.index.max(), 60)
            shape = 1 / (1 + fit["value"] / sizes)
            scale = np.exp(np.mean(np.log(mean) + np.log1p(fit["value"] / mean.index.to_numpy(float))))
            axes.plot(sizes, scale * shape, color=colour, linewidth=0.9)
    log_axis(axes.xaxis, *_range(searches["batch_size"]))
    log_axis(axes.yaxis, *_range(searches["decrease"]))
    axes.set_xlabel(f"batch size of the gradient ({_unit(name)}s)")
    axes.set_ylabel("decrease of the loss")
    axes.legend(title="goal", loc="center left", bbox_to_anchor=(1.0, 0.5), title_fontsize=7.5)


def _table(results: Path, name: str) -> tuple[str, pd.DataFrame | None]:
    """The folder that it was found in, and the table."""
    found = sorted(path for path in results.glob(f"*/{name}") if not path.parent.name.endswith("-smoke"))
    chosen = next((path for path in found if path.parent.name.startswith("svhn-")), found[0] if found else None)
    return (chosen.parent.name, pd.read_csv(chosen)) if chosen else ("", None)


def _reach(rows: pd.DataFrame) -> np.ndarray:
    """Half a 95% interval of each mean."""
    return rows["sem"].to_numpy(float) * stdtrit(rows["count"].to_numpy(float) - 1, 0.975)


def _unit(sweep: str) -> str:
    return TASKS[sweep.rpartition("-")[0]][1].unit  # type: ignore[attr-defined]


def _range(values: pd.Series) -> tuple[float, float]:
    positive = values[values > 0]
    return float(positive.min()), float(positive.max())


def _command(module: str) -> str:
    return f"python -m experiments.cli.{module} task=svhn preset={module}"
