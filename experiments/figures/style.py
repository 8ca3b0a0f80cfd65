"""The one style sheet: sizes, colours, marks, and files that come out the same byte for byte."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from experiments.files import write_atomically
from noisescale.pareto.fit import Estimate

DOTS_PER_INCH = 200  # of the PNGs
COLUMN, PAGE = 3.4, 7.0  # inches: a column, and the text width, of a printed page
# Okabe and Ito's palette, told apart with any colour vision; each colour goes with a mark of its own.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
READABLE = tuple(colour for colour in COLOURS if colour != "#F0E442")  # on white, in thin lines
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "p", "*", "d", "8", "H")
B_CRIT, B_SIMPLE, B_NOISE, LINE_SEARCH = COLOURS[1], COLOURS[0], COLOURS[2], COLOURS[3]
GREY, PALE = "#8c8c8c", "#c4c4c4"

STYLE = {
    "figure.dpi": 100,
    "savefig.dpi": DOTS_PER_INCH,
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "errorbar.capsize": 1.5,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
    "svg.hashsalt": "noisescale",
    "mathtext.default": "regular",
}


def drawn(draw: Callable[[], Figure]) -> Figure:
    """`draw()` under the style sheet."""
    with mpl.rc_context(STYLE):
        return draw()


def save(figure: Figure, stem: Path) -> list[Path]:
    """`stem`.pdf and `stem`.png, without dates or versions in them; whole, or as they were."""
    pdf, png = stem.with_name(f"{stem.name}.pdf"), stem.with_name(f"{stem.name}.png")
    with mpl.rc_context(STYLE):
        _write(figure, png, {"Software": None})
        figure.set_layout_engine("none")  # it is laid out now, and finding the layout takes as long as drawing
        _write(figure, pdf, {"CreationDate": None, "Producer": None, "Creator": None})
    return [pdf, png]


def _write(figure: Figure, path: Path, metadata: dict[str, None]) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
    write_atomically(path, buffer.getvalue())


def shades(count: int) -> list[tuple[float, float, float, float]]:
    """Colours for an ordered quantity (batch sizes, goals), dark to light, readable on white."""
    return [tuple(rgba) for rgba in mpl.colormaps["viridis"](np.linspace(0.0, 0.88, max(count, 1)))]


def mark(index: int) -> str:
    return MARKS[index % len(MARKS)]


def number(value: float) -> str:
    """As an axis shows it: 0.01, 1, 100, 10k, 1M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


def log_axis(axis, low: float, high: float) -> None:
    """Logarithmic, with a label at every decade, or at 1, 2, 5 of each where there are fewer than three, or at each
    power of two less."""
    axis._set_axes_scale("log")
    decades = np.log10(high / low)
    mantissas = (
        (1,) if decades > 2.6 else (1, 3) if decades > 1.7 else (1, 2, 5) if decades > 0.7 else (1, 1.5, 2, 3, 4, 5, 7)
    )
    step = 2 if decades > 7 else 1
    powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 2)
    axis.set_major_locator(FixedLocator([m * 10.0**p for p in powers if p % step == 0 for m in mantissas]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.4g}"))))
    axis.set_minor_formatter(NullFormatter())


def whiskers(
    axes: Axes, x: Sequence[float], estimates: Sequence[Estimate], colour: str, marker: str, label: str
) -> None:
    """Values with 95% intervals, joined by a line; an open end of an interval is an arrow, an unknown value is left
    out."""
    kept = [(at, e) for at, e in zip(x, estimates, strict=True) if e.value == e.value and e.value > 0]
    if not kept:
        return
    at, values = [k[0] for k in kept], np.array([k[1].value for k in kept])
    low = np.array([e.low if e.low > 0 else e.value for _, e in kept])
    high = np.array([e.high if np.isfinite(e.high) else e.value for _, e in kept])
    axes.errorbar(
        at, values, yerr=[values - low, high - values], color=colour, marker=marker, label=label, elinewidth=0.8
    )
    for x_at, e in kept:
        for factor, is_open in ((2.0, not np.isfinite(e.high)), (0.5, e.low == 0 or np.isneginf(e.low))):
            if is_open:
                arrow = {"arrowstyle": "->", "color": colour, "lw": 0.8}
                axes.annotate("", (x_at, e.value * factor), (x_at, e.value), arrowprops=arrow)


def legend_below(figure: Figure, columns: int = 1) -> None:
    """One legend for all panels, under them, with each label once."""
    entries = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, columnspacing=1.2)


def nothing_yet(axes: Axes, title: str, text: str) -> None:
    """A panel without data, which says so and how to get them."""
    axes.set_title(title)
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=7.5, color="#555555")
