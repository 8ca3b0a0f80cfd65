"""A Markdown page as one HTML file with its pictures inside, readable on a phone, on paper and without colour."""

import base64
import io
import re
from pathlib import Path

from markdown_it import MarkdownIt
from PIL import Image

from experiments.figures.style import DOTS_PER_INCH

PIXELS_PER_INCH = 130
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 62rem; margin: 0 auto; padding: 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc;
} h3 { font-size: 1.05rem; margin-top: 1.6rem; } img { max-width: 100%; height: auto; display: block; margin: .8rem
auto; } .scroll { overflow-x: auto; margin: .8rem 0; } table { border-collapse: collapse; font-size: .86rem;
font-variant-numeric: tabular-nums; } th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left;
vertical-align: top; } td { white-space: nowrap; } td:last-child { white-space: normal; min-width: 9rem; } th {
border-bottom: 2px solid #888; } code, pre { font: .88em/1.4 ui-monospace, Menlo, Consolas, monospace; background:
#f4f4f4; } pre { padding: .6rem; overflow-x: auto; } code { padding: .05rem .25rem; } pre code { padding: 0; } a {
color: #0b57a4; } @media print { body { font-size: 10pt; max-width: none; padding: 0; } h2, h3 { break-after: avoid; }
  img, tr { break-inside: avoid; } .scroll { overflow: visible; } table { font-size: 7.5pt; } td { white-space: normal;
  } }
"""


def to_html(markdown: str, title: str, folder: Path) -> str:
    """The page; pictures are read relative to `folder` and embedded as base64.

    Tables scroll sideways by themselves where the screen is narrow, so the page never does; a value
    and its interval stay on one line.
    """
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    body = re.sub(r"[^ <>]+ \[[^\]<>]*\]", lambda found: found.group().replace(" ", "\N{NO-BREAK SPACE}"), body)
    body = re.sub(r'src="([^":]+\.png)"', lambda found: _embedded(folder / found.group(1)), body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _embedded(path: Path) -> str:
    """The picture's source, in 64 colours to keep the page small, and its width, a little larger than in print."""
    with Image.open(path) as picture:
        width = round(picture.width / DOTS_PER_INCH * PIXELS_PER_INCH)
        small = io.BytesIO()
        picture.convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return f'src="data:image/png;base64,{base64.b64encode(small.getvalue()).decode()}" width="{width}"'
