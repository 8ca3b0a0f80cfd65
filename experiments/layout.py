"""Numbers with their errors, and tables of them, as plain text."""

import math
from collections.abc import Sequence

from noisescale.pareto import Estimate


def rounded(value: float, digits: int = 3) -> str:
    """`digits` significant digits with thousands separators, an exponent from 1e8 on: 0.0123, 4.5, 1,230."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if abs(value) >= 1e8 or abs(value) < 1e-5:
        return f"{value:.{digits - 1}e}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    places = digits - 1 - exponent
    return f"{round(value, places):,.{max(places, 0)}f}"


def digits_for(estimate: Estimate) -> int:
    """Significant digits that the interval supports: 2 where its ends are more than 10% apart, 3 above 1%, else 4."""
    if not (estimate.low > 0 and math.isfinite(estimate.high)):
        return 2
    spread = math.log(estimate.high / estimate.low)
    return 2 if spread > 0.1 else 3 if spread > 0.01 else 4


def with_interval(estimate: Estimate) -> str:
    """'120 [95, 150]', rounded by its error; an open end (±inf, or 0) is written as < or >, no value as a dash."""
    if math.isnan(estimate.value):
        return "–"
    digits = digits_for(estimate)
    value, low, high = (rounded(x, digits) for x in (estimate.value, estimate.low, estimate.high))
    open_below = estimate.low == 0 or math.isinf(estimate.low)
    if open_below and math.isinf(estimate.high):
        return f"{value} [?]"
    if math.isinf(estimate.high):
        return f"{value} [>{low}]"
    if open_below:
        return f"{value} [<{high}]"
    return f"{value} [{low}, {high}]"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, the first to the left and the others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    rule = "─" * len(lines[0])
    return "\n".join([lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])])
