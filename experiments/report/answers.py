"""Table 1, ours beside the paper's, and the paper's questions with what our sweeps answer."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from experiments.analysis import paper
from experiments.analysis.sweep_summary import SweepResult
from experiments.analysis.verdict import ratio
from experiments.report.markdown import given, metric, noise, table
from noisescale.formatting import with_interval
from noisescale.pareto.fit import Estimate

SIZES = ("lm_narrow", "lm", "lm_wide")
LADDER = ("mnist", "svhn", "cifar10", "imagenet")
GENERATIVE = ("svhn_autoencoder", "svhn_vae")


def table1(sweeps: Sequence[SweepResult], results: Path) -> list[str]:
    """Each task of the paper with our sweeps of it, then ours that it doesn't have."""
    theirs = paper.table1(results)
    left = list(sweeps)
    rows = []
    for task in paper.PAPER_TASKS:
        row = theirs[task.name]
        cells = [given(row[name]) for name in ("b_crit_start", "b_crit", "b_simple_start", "b_simple_avg")] + ["–"]
        rows.append([f"**{task.name}**", f"paper, {paper.unit(results, task.name)}s", *cells])
        ours = [sweep for sweep in left if sweep.task in task.ours]
        rows += [_table1_row(sweep) for sweep in ours] or [["", "ours: not measured yet", *[""] * 5]]
        left = [sweep for sweep in left if sweep not in ours]
    rows += [[f"**{sweep.task}**", *_table1_row(sweep)[1:]] for sweep in left]
    header = ["task", "", "B_crit, start", "B_crit, end", "B_simple, start", "B_simple, averaged", "B_simple, end"]
    return [
        table(header, rows),
        "Start and end of B_crit are the easiest and the hardest goal at which it is determined (the paper's header "
        "calls the second an average, its caption the end of the run); those of B_simple are step 0 and the hardest "
        "goal, up to which it is averaged. The paper gives no errors; what it calls frames of Atari are observations "
        "of 4 frames, as ours are, and its row is a range over seven games.",
    ]


def _table1_row(sweep: SweepResult) -> list[str]:
    end = (sweep.end or sweep.fits[-1]).b_simple
    values = (sweep.b_crit_start, sweep.b_crit, sweep.b_simple_start, sweep.b_simple_avg, end)
    return ["", f"ours: {sweep.name}, {sweep.unit}s", *map(with_interval, values)]


def questions(sweeps: Sequence[SweepResult]) -> list[str]:
    said = [_growth(sweeps, "B_simple", "b_simple"), _growth(sweeps, "B_crit", "b_crit")]
    by_task = {sweep.task: sweep for sweep in reversed(sweeps) if sweep.end is not None}  # paper, small, spans
    ladder = [by_task[task] for task in LADDER if task in by_task]
    if len(ladder) > 1:
        steps = list(pairwise(ladder))
        holds = [_above(high.b_crit, low.b_crit) for low, high in steps]
        shown = ", ".join(f"{sweep.name} {with_interval(sweep.b_crit)}" for sweep in ladder)
        said.append(
            f"**Does B_crit rise along the ladder of image tasks?** {shown} at the hardest goals, step by step: "
            f"{_all(holds)}. At equal errors: {'; '.join(_at_equal_error(low, high) for low, high in steps)}."
        )
    below = [by_task[task] for task in GENERATIVE if task in by_task]
    if below and "svhn" in by_task:
        classifier = by_task["svhn"]
        holds = [_above(classifier.b_crit, sweep.b_crit) for sweep in below]
        shown = ", ".join(f"{sweep.name} {with_interval(sweep.b_crit)}" for sweep in below)
        said.append(
            f"**Do generative models sit below the classifier of the same images?** {shown}, against {classifier.name} "
            f"{with_interval(classifier.b_crit)}: {_all(holds)}."
        )
    sizes = [by_task[task] for task in SIZES if task in by_task]
    if len(sizes) > 1:
        said.append(_size(sizes))
    return [f"- {line}" for line in said]


def _at_equal_error(low: SweepResult, high: SweepResult) -> str:
    """B_crit and averaged B_simple of two sweeps at the hardest goal that both have; are the second's larger?"""
    ours, theirs = ({fit.goal: fit for fit in sweep.determined} for sweep in (low, high))
    shared = [goal for goal in ours if goal in theirs]
    if not shared:
        return f"{low.name} and {high.name} share no goal"
    first, second = ours[shared[-1]], theirs[shared[-1]]
    return (
        f"at {shared[-1]:g}, {low.name} {with_interval(first.b_crit)} and {high.name} {with_interval(second.b_crit)} "
        f"({_above(second.b_crit, first.b_crit)}; averaged B_simple {with_interval(first.b_simple_avg)} and "
        f"{with_interval(second.b_simple_avg)}, {_above(second.b_simple_avg, first.b_simple_avg)})"
    )


def _size(sweeps: Sequence[SweepResult]) -> str:
    """B_simple of one model in several sizes, smallest first, at the goals that all have."""
    goals = [fit.goal for fit in sweeps[0].fits if all(fit.goal in {f.goal for f in s.fits} for s in sweeps)]
    parts = []
    for goal in goals:
        found = [next(fit.b_simple for fit in sweep.fits if fit.goal == goal) for sweep in sweeps]
        change = ratio(found[-1], found[0])
        clear = "rises with size" if change.low > 1 else "falls with size" if change.high < 1 else "no clear change"
        parts.append(f"{', '.join(map(noise, found))} at {metric(sweeps[0])} {goal:g} ({clear})")
    names = ", ".join(f"{s.name} ({int(s.tables.describe('parameters')):,} parameters)" for s in sweeps)
    return f"**Does size matter at equal loss?** B_simple of {names}: {'; '.join(parts) or 'no goal in common'}."


def _growth(sweeps: Sequence[SweepResult], label: str, name: str) -> str:
    parts = []
    for sweep in sweeps:
        known = [(fit.goal, getattr(fit, name)) for fit in sweep.determined]
        known = [(goal, e) for goal, e in known if e.value > 0 and e.low > 0 and math.isfinite(e.high)]
        if len(known) > 1:
            (first, start), (last, end) = known[0], known[-1]
            growth = ratio(end, start)
            clear = "grows" if growth.low > 1 else "falls" if growth.high < 1 else "no clear change"
            parts.append(f"{sweep.name} {with_interval(growth)} times from {first:g} to {last:g} ({clear})")
    return f"**Does {label} grow along a run?** {'; '.join(parts) or 'Not determined at two goals of any sweep'}."


def _above(high: Estimate, low: Estimate) -> str:
    found = ratio(high, low)
    return "yes" if found.low > 1 else "no" if found.high < 1 else "unclear"


def _all(holds: Sequence[str]) -> str:
    return holds[0] if len(set(holds)) == 1 else ", then ".join(holds)
