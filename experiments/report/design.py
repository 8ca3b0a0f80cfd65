"""The report on the sweeps' own design: which checks each passes, what is missing, and what that costs."""

from collections.abc import Sequence

from experiments.analysis.design_cost import Repair, repairs
from experiments.analysis.goal_fit import GoalFit
from experiments.analysis.sweep_design import MARGIN, SEEDS, STEPS, Check, Design, design
from experiments.analysis.sweep_summary import SweepResult
from experiments.analysis.verdict import tally
from experiments.report.markdown import metric, table
from noisescale.formatting import number

CHECKS: dict[Check, str] = {
    "learning rate": "the best learning rate inside its grid",
    "seeds": f"{SEEDS} seeds or more",
    "range": f"B_crit at least {MARGIN:g} times inside the batch sizes on both sides",
    "steps": f"{STEPS:g} steps or more at the largest batch size",
}


def designs(sweeps: Sequence[SweepResult]) -> list[str]:
    """Counted at the hardest goals and over all determined ones; a row a sweep."""
    found = [[(fit, checked) for fit in sweep.determined if (checked := _design(sweep, fit))] for sweep in sweeps]
    hardest = [goals[-1][1] for goals in found if goals]
    every = [(fit, checked) for goals in found for fit, checked in goals]
    passing = [fit.verdict for fit, checked in every if not checked.faults]
    counts = [
        f"{label} at {sum(check not in one.faults for one in hardest)} "
        f"({sum(check not in one.faults for _, one in every)})"
        for check, label in CHECKS.items()
    ]
    needed = [repairs(sweep, *goals[-1]) if goals else [] for sweep, goals in zip(sweeps, found, strict=True)]
    rows = [_row(*each) for each in zip(sweeps, found, needed, strict=True)]
    header = ["sweep", "hardest goal", "learning rates on an edge", "fewest seeds", "B_crit / smallest B"]
    header += ["largest B / B_crit", "steps at the largest B", "goals that pass all", "missing, and core-hours"]
    return [
        f"**{sum(not one.faults for one in hardest)} of {len(hardest)} sweeps pass all four checks at the hardest goal "
        f"with a determined B_crit, and {len(passing)} of {len(every)} goals.** Check by check, and in brackets at how "
        f"many of all goals: {'; '.join(counts)}. "
        + (f"The goals that pass all: {tally(passing)}." if passing else "No goal passes all.")
        + _together(sweeps, needed),
        table(header, rows),
        "Bold is what fails. Batch sizes count at which a tuned run reached the goal, and steps are those at the "
        "largest of them, which takes the fewest. Costs are at the pace of the runs that are there, each on one core: "
        "three runs a seed more, for the best learning rate and its neighbours; batch sizes more, spaced as the "
        "others, with as many runs as the nearest; and for more steps a harder goal, which costs the sweep again and "
        "longer, at least.",
    ]


def _design(sweep: SweepResult, fit: GoalFit) -> Design | None:
    return design(sweep.grids(fit.goal), fit.b_crit.value)


def _row(sweep: SweepResult, goals: Sequence[tuple[GoalFit, Design]], needed: Sequence[Repair]) -> list[str]:
    if not goals:
        return [sweep.name, "B_crit isn't determined at any goal", *[""] * 7]
    fit, checked = goals[-1]
    edges = sum(ends > 0 for ends in checked.open_ends)
    cells = [
        (f"{edges} of {len(checked.sizes)}", edges > 0),
        (str(min(checked.seeds)), "seeds" in checked.faults),
        (number(checked.below, 2), checked.below < MARGIN),
        (number(checked.above, 2), checked.above < MARGIN),
        (number(checked.steps, 2), "steps" in checked.faults),
    ]
    return [
        sweep.name,
        f"{metric(sweep)} {fit.goal:g}",
        *(f"**{text}**" if failing else text for text, failing in cells),
        f"{sum(not one.faults for _, one in goals)} of {len(goals)}",
        "; ".join(map(_priced, needed)) or "nothing",
    ]


def _together(sweeps: Sequence[SweepResult], needed: Sequence[Sequence[Repair]]) -> str:
    hours = {s.name: sum(r.seconds for r in of_one) / 3600 for s, of_one in zip(sweeps, needed, strict=True) if of_one}
    if not hours:
        return ""
    dearest = max(hours, key=hours.__getitem__)
    return (
        f" What is missing at the hardest goals costs some {number(sum(hours.values()), 2)} core-hours, "
        f"{number(hours[dearest], 2)} of them {dearest}'s."
    )


def _priced(repair: Repair) -> str:
    return f"{repair.what}: {'at least ' * repair.at_least}{number(repair.seconds / 3600, 2)}"
