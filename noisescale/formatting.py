"""Numbers with their errors, and tables of them, as plain text."""

import math
from collections.abc import Sequence

from noisescale.pareto.fit import Estimate


def number(value: float, digits: int = 3) -> str:
    """`digits` significant digits with thousands separators, an exponent outside 1e-4 … 1e8: 0.0123, 1,230, 2.1e12."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e8:
        return _with_exponent(value, digits)
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    places = digits - 1 - exponent
    return f"{round(value, places):,.{max(places, 0)}f}"


def _with_exponent(value: float, digits: int) -> str:
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def whole(value: float) -> str:
    """A batch size or a count: '4,096', and '0.5' where it isn't whole."""
    return f"{value:,.0f}" if value == round(value) else number(value)


def with_interval(estimate: Estimate, digits: int | None = None) -> str:
    """'118 [95, 150]', rounded by its interval unless `digits` is given; open ends as '[>95]', '[<150]' or '[?]'."""
    if math.isnan(estimate.value):
        return "–"
    digits = _supported(estimate) if digits is None else digits
    values = (estimate.value, estimate.low, estimate.high)
    plain = all(x == 0 or math.isinf(x) or 1e-4 <= abs(x) < 1e8 for x in values)
    value, low, high = (number(x, digits) if plain or x == 0 else _with_exponent(x, digits) for x in values)
    open_below = estimate.low in (0, -math.inf)
    if open_below and math.isinf(estimate.high):
        return f"{value} [?]"
    if math.isinf(estimate.high):
        return f"{value} [>{low}]"
    if open_below:
        return f"{value} [<{high}]"
    return value if low == value == high else f"{value} [{low}, {high}]"


def _supported(estimate: Estimate) -> int:
    """Digits worth printing: 2 where the interval's ends differ by more than 20%, 3 above 2%, else 4."""
    if not (estimate.low > 0 and math.isfinite(estimate.high)):
        return 2
    spread = estimate.high / estimate.low - 1
    return 2 if spread > 0.2 else 3 if spread > 0.02 else 4


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the first to the left, the others to the right; a rule under the header."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *rows]
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])
