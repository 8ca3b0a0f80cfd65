"""The Pareto front as a picture; matplotlib is imported only here, when a picture is asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from noisescale.cli.runs_csv import GoalRuns
from noisescale.formatting import with_interval
from noisescale.pareto.fit import ParetoFit

# Of matplotlib's plasma, dark to light: up to here every colour has a contrast of 3 or more on white.
LIGHTEST = 0.62
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">")
# No date and no version in the file, so that the same runs give the same bytes.
METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def draw_fronts(runs: Mapping[str, GoalRuns], fits: Mapping[str, ParetoFit], path: Path) -> None:
    """The picture of `fronts` as a file; around a long legend it grows.

    Raises:
        ImportError: without matplotlib.
        ValueError: where the path's ending is no picture format that matplotlib knows.
        OSError: where the file can't be written.
    """
    figure = fronts(runs, fits)
    figure.savefig(path, dpi=200, bbox_inches="tight", metadata=METADATA.get(path.suffix.lower()))


def fronts(runs: Mapping[str, GoalRuns], fits: Mapping[str, ParetoFit]) -> Any:
    """A figure of examples over steps, both logarithmic, one colour a goal; hollow where the goal was not reached."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4.4))
    axes = figure.add_subplot(
        xscale="log", yscale="log", xlabel="optimizer steps S", ylabel="examples E (in the unit of batch_size)"
    )
    colours = colormaps["plasma"](np.linspace(0, LIGHTEST, len(fits)))
    for k, (goal, fit) in enumerate(fits.items()):
        look = {"color": colours[k], "marker": MARKERS[k % len(MARKERS)], "ms": 5, "ls": "none"}
        batch, steps = np.array(runs[goal].batch_size), np.array(runs[goal].steps)
        reached = np.array(runs[goal].reached)
        if np.isfinite(fit.s_min.value):
            fine = np.geomspace(batch.min(), batch.max(), 200)
            line = "-" if fit.determined else ":"
            axes.plot(fit.steps(fine), fit.examples(fine), color=colours[k], lw=1.2, ls=line)
        label = f"{goal}: " if goal else "B_crit "
        label += with_interval(fit.b_crit) if fit.determined else "not determined"
        axes.plot(steps[reached], (batch * steps)[reached], **look, label=label)
        axes.plot(steps[~reached], (batch * steps)[~reached], **look, mfc="white")
    if any(not all(group.reached) for group in runs.values()):
        axes.plot([], [], "o", mfc="none", color="grey", ms=5, label="hollow: goal not reached")
    for axis in (axes.xaxis, axes.yaxis):
        _round_ticks(axis)
    axes.grid(alpha=0.25, lw=0.5)
    title = None if list(fits) == [""] else "goal: B_crit [95%]"
    legend = axes.legend(
        loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, frameon=False, title=title, title_fontsize=8
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _round_ticks(axis: Any) -> None:
    """On a logarithmic axis: labels at round numbers, so few that they don't touch."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 0.7:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        mantissas = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 2.6 else (1,)
        axis.set_major_locator(LogLocator(subs=mantissas, numticks=6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    """0.5, 200, 1k, 23.4k, 5M."""
    letters = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}
    size = next((size for size in letters if value >= size), 1)
    return f"{value / size:.6g}{letters.get(size, '')}"
