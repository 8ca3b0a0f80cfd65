"""Markdown for the report: tables, pictures, and values as a reader sees them."""

import math
from collections.abc import Iterable, Sequence

from experiments.analysis.goal_fit import GoalFit
from experiments.analysis.sweep_summary import SweepResult
from noisescale.formatting import with_interval
from noisescale.pareto.fit import Estimate


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def figure(name: str, caption: str) -> str:
    """The picture `figures/<name>.png` with its caption below."""
    return f"![{caption}](figures/{name}.png)\n\n*{caption}.*"


def b_crit(fit: GoalFit) -> str:
    """B_crit with its interval, and whether it is determined."""
    return with_interval(fit.b_crit) + ("" if fit.b_crit_status == "determined" else " (not determined)")


def noise(estimate: Estimate) -> str:
    """A noise scale with its interval; it is positive, so an interval that holds negative ones determines nothing."""
    unclear = estimate.low < 0 or (estimate.low == 0 and math.isinf(estimate.high))
    return "not determined" if unclear and not math.isnan(estimate.value) else with_interval(estimate)


def given(estimate: Estimate) -> str:
    """A value of the paper's: as it stands, a range, or a bound."""
    if math.isnan(estimate.value):
        return "–"
    if math.isinf(estimate.high):
        return f"> {estimate.low:,.0f}"
    if estimate.low != estimate.high:
        return f"{estimate.low:,.0f}–{estimate.high:,.0f}"
    return f"{estimate.value:,.0f}"


def metric(sweep: SweepResult) -> str:
    """Its name in words."""
    return sweep.tables.describe("metric").replace("_", " ")


def counted(count: int, thing: str) -> str:
    """'1 run', '2 runs'."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """In hours from one hour on, else in minutes."""
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours >= 1 else f"{seconds / 60:.0f} min"
