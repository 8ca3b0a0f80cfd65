"""A Markdown page as one HTML file with its pictures inside, readable on a phone, on paper and without colour."""

import base64
import io
import re
from pathlib import Path

import numpy as np
from markdown_it import MarkdownIt
from PIL import Image, ImageColor

from experiments.figures.style import COLOURS, DOTS_PER_INCH

PIXELS_PER_INCH = 130  # of a figure on a screen, so a little larger than in print
READABLE = 640  # pixels: a wider figure scrolls sideways sooner than have letters less than 9 pixels high
LONG = 40  # characters from which a cell is a text, not to be squeezed to its longest word
SHADES = 96  # colours of an embedded picture
KEPT = np.array([ImageColor.getrgb(colour) for colour in COLOURS] + [(grey,) * 3 for grey in range(255, 0, -17)])
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 78rem; margin: 0 auto; padding: 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin-top: 1.6rem; }
p, li { max-width: 52rem; }
a { color: #0b57a4; }
code, pre { font: .88em/1.4 ui-monospace, Menlo, Consolas, monospace; background: #f4f4f4; }
code { padding: .05rem .25rem; }
pre { padding: .6rem; overflow-x: auto; }
pre code { padding: 0; }
img { width: calc(var(--inches) * var(--inch)); max-width: 100%; height: auto; display: block; margin: .8rem 0; }

/* What is too wide scrolls by itself. The shadows stay at the edges of the box, the white that hides them moves with
   the content: a shadow shows where there is more. */
.scroll { overflow-x: auto; margin: .8rem 0;
  background: linear-gradient(to right, #fff 50%, #fff0) 0 0 / 3rem 100% no-repeat local,
    linear-gradient(to left, #fff 50%, #fff0) 100% 0 / 3rem 100% no-repeat local,
    linear-gradient(to right, #0006, #0000) 0 0 / .9rem 100% no-repeat scroll,
    linear-gradient(to left, #0006, #0000) 100% 0 / .9rem 100% no-repeat scroll; }
.wide img { min-width: var(--readable); mix-blend-mode: multiply; }

table { border-collapse: collapse; font-size: .8rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .45rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #888; vertical-align: bottom; }
.long { min-width: 10rem; max-width: 19rem; }

@media (max-width: 44rem) {
  table { font-size: .72rem; }
  th, td { padding: .2rem .3rem; }
  .long { min-width: 8rem; }
  .wide::before { content: "wider than the screen: scroll sideways \\2192"; position: sticky; left: 0;
    font-size: .75rem; color: #555; }
}
@media print {
  @page { margin: 10mm; }
  body { font-size: 10pt; max-width: none; padding: 0; }
  h2, h3 { break-after: avoid; }
  p, li { max-width: none; }
  img, tr { break-inside: avoid; }
  .scroll { overflow: visible; background: none; }
  .wide::before { content: none; }
  img { width: calc(var(--inches) * 1in); max-height: 23cm; object-fit: contain; object-position: left; }
  .wide img { min-width: 0; mix-blend-mode: normal; }
  .wide, .narrow { break-after: avoid; }
  table { font-size: 7pt; line-height: 1.25; }
  th, td { padding: .1rem .16rem; }
  .long { min-width: 5.5rem; max-width: 16rem; }
  pre { white-space: pre-wrap; }
}
"""


def to_html(markdown: str, title: str, folder: Path) -> str:
    """The page; pictures are read relative to `folder` and embedded as base64.

    Tables and wide figures scroll sideways by themselves where the screen is narrow, so the page never does. An
    interval stays on one line, and with its value, but in a cell it goes below it where the table would be too wide.
    """
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    body = re.sub(r"[^ <>]+ \[[^\]<>]*\]", lambda found: found.group().replace(" ", "\N{NO-BREAK SPACE}"), body)
    body = re.sub(r"<td>(.*?)</td>", _cell, body)
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    body = re.sub(r'<p>(<img src=")([^":]+\.png)(".*?>)</p>', lambda found: _figure(folder, *found.groups()), body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n"
        f"<style>\n:root {{ --inch: {PIXELS_PER_INCH}px; --readable: {READABLE}px; }}{STYLE}</style>\n"
        f"</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _cell(found: re.Match[str]) -> str:
    text = found.group(1).replace("\N{NO-BREAK SPACE}[", " [")
    return f'<td class="long">{text}</td>' if len(text) > LONG else f"<td>{text}</td>"


def _figure(folder: Path, before: str, path: str, after: str) -> str:
    """The picture, in a box that scrolls where the screen is too narrow for it."""
    with Image.open(folder / path) as picture:
        inches = picture.width / DOTS_PER_INCH
        source = base64.b64encode(_png(picture.convert("RGB"))).decode()
    kind = "wide scroll" if inches * PIXELS_PER_INCH > READABLE else "narrow"
    return f'<div class="{kind}" style="--inches: {inches:g}">{before}data:image/png;base64,{source}{after}</div>'


def _png(picture: Image.Image) -> bytes:
    """In few colours, to keep the page small; the style's are among them, and greys. Every pixel takes the nearest."""
    others = picture.quantize(SHADES - len(KEPT), method=Image.Quantize.FASTOCTREE).getpalette() or []
    palette = np.concatenate([KEPT, np.reshape(others, (-1, 3))[: SHADES - len(KEPT)]])
    pixels = np.asarray(picture).astype(int) @ (1 << 16, 1 << 8, 1)
    found, which = np.unique(pixels, return_inverse=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=-1)
    nearest = np.square(colours[:, None] - palette).sum(-1).argmin(1).astype(np.uint8)
    small = Image.fromarray(nearest[which].reshape(pixels.shape))
    small.putpalette(palette.astype(np.uint8).tobytes())
    written = io.BytesIO()
    small.save(written, "PNG", optimize=True)
    return written.getvalue()
