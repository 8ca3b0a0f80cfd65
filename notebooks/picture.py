"""A figure in a notebook: small, in the style of the others, and the same bytes every time."""

from collections.abc import Callable
from io import BytesIO

import matplotlib as mpl
from IPython.display import Image
from matplotlib.figure import Figure
from PIL import Image as Pixels

from experiments.figures.style import STYLE

DOTS_PER_INCH = 110
SHADES = 64


def picture(draw: Callable[[], Figure]) -> Image:
    """What `draw()` draws, as a PNG of 64 colours, which takes a quarter of the room."""
    full, small = BytesIO(), BytesIO()
    with mpl.rc_context(STYLE):
        figure = draw()
        figure.savefig(full, dpi=DOTS_PER_INCH)
    with Pixels.open(full) as pixels:
        reduced = pixels.convert("RGB").quantize(SHADES, Pixels.Quantize.MAXCOVERAGE, dither=Pixels.Dither.NONE)
    reduced.save(small, "PNG", optimize=True)
    return Image(small.getvalue())
