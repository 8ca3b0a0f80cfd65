"""The Pareto front as a picture; matplotlib is imported only here, when a picture is asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from noisescale.csvruns import GoalRuns
from noisescale.pareto import ParetoFit
from noisescale.text import with_interval

# Okabe and Ito's colours, told apart by colour-blind readers too; yellow is left out, too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">")
# No date and no version in the file, so that the same runs give the same bytes.
METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def draw_fronts(runs: Mapping[str, GoalRuns], fits: Mapping[str, ParetoFit], path: Path) -> None:
    """Steps against examples, both logarithmic, one colour a goal; hollow where the goal was not reached.

    Raises:
        ImportError: without matplotlib.
        ValueError: where the path's ending is no picture format that matplotlib knows.
        OSError: where the file can't be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="Examples processed", ylabel="Optimizer steps")
    for k, (goal, fit) in enumerate(fits.items()):
        colour, marker = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
        batch, steps = np.array(runs[goal].batch_size), np.array(runs[goal].steps)
        reached = np.array(runs[goal].reached)
        label = f"{goal}: " if goal else "B_crit "
        if fit.determined:
            label += with_interval(fit.b_crit)
        else:
            label += "not determined"
        axes.plot(batch[reached] * steps[reached], steps[reached], marker, color=colour, ms=5, ls="none", label=label)
        missed = {"marker": marker, "mfc": "none", "color": colour, "ms": 5, "ls": "none"}
        axes.plot(batch[~reached] * steps[~reached], steps[~reached], **missed)
        _draw_fit(axes, fit, batch, colour)
    if any(not all(group.reached) for group in runs.values()):
        axes.plot([], [], "o", mfc="none", color="grey", ms=5, label="hollow: goal not reached")
    axes.grid(alpha=0.25, lw=0.5)
    title = None if list(fits) == [""] else "goal: B_crit [95%]"
    figure.legend(loc="outside right upper", fontsize=8, frameon=False, title=title, title_fontsize=8)
    figure.savefig(path, dpi=200, metadata=METADATA.get(path.suffix.lower()))


def _draw_fit(axes: Any, fit: ParetoFit, batch: np.ndarray, colour: str) -> None:
    if not np.isfinite(fit.s_min.value):
        return
    fine = np.geomspace(batch.min(), batch.max(), 200)
    axes.plot(fit.examples(fine), fit.steps(fine), color=colour, lw=1.2, ls="-" if fit.determined else ":")
