"""The report's opening: does B_simple predict B_crit, and better than a cheap guess?"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.skill import Conclusion, UnitSkill, points, unit_skills
from experiments.analysis.sweep_summary import SweepResult
from experiments.analysis.verdict import FACTOR, SweepVerdict, tally
from experiments.report.markdown import b_crit, counted, figure, metric, table
from noisescale.formatting import number, with_interval
from noisescale.pareto.fit import Estimate

CLAIM = (
    "The claim: B_simple = tr Σ/|G|², measured while training, predicts B_crit, the batch size beyond which larger "
    "batches stop paying."
)
SAID: dict[Conclusion, str] = {
    "better": "predicts B_crit better than a constant",
    "off by a factor": "predicts B_crit better than a constant once a factor is taken out",
    "worse": "predicts B_crit worse than a constant",
    "can't tell": "can't be told apart from a constant as a predictor of B_crit",
}
VERBS: dict[SweepVerdict, tuple[str, str]] = {
    "agree": ("agrees", "agree"),
    "differ": ("differs", "differ"),
    "mixed": ("is mixed", "are mixed"),
    "can't tell": ("can't tell", "can't tell"),
    "not determined": ("isn't determined", "aren't determined"),
}
IN_README = {"mnist": "MNIST", "svhn": "SVHN", "imagenet": "ImageNet subset", "lm": "language model", "pong": "Pong"}
PLAIN: dict[SweepVerdict, str] = {
    "agree": f"yes, within a factor of {FACTOR:g}",
    "differ": "no",
    "mixed": "at some goals, not at others",
    "can't tell": "can't tell",
    "not determined": "not determined",
}


def opening(sweeps: Sequence[SweepResult], results: Path) -> list[str]:
    """The answer in a paragraph, sweep by sweep, as a picture, and beside rivals."""
    found = unit_skills(points(sweeps, results))
    return [
        " ".join([in_short(found), *map(_misses, found), *_too_few(sweeps, found), _by_sweeps(sweeps)]),
        _verdicts(sweeps),
        figure(
            "fig04",
            "Above, B_crit against B_simple, by what B counts: hardest goals filled, easier ones hollow, the paper's "
            "Table 1 grey; the line is equality, the band a factor of 3, dashed a constant, the median of the hardest "
            "goals. Below, their ratio at the hardest goal (filled) and the easiest, sweep by sweep",
        ),
        "Brackets are 95% intervals ([>19] has no upper end, [?] no end); batch sizes are in the unit of each sweep. "
        "On which data, how much of them and with which network each was measured stands task by task below. B_crit "
        "comes from tuned runs at many batch sizes, B_simple from the gradients of the same runs, all "
        "batch sizes pooled, averaged up to the goal by full-batch steps: the average of B_noise that theory equates "
        "with B_crit, and B_simple stands in for B_noise. A goal *agrees* if the interval of "
        f"their ratio lies within a factor of {FACTOR:g} of 1, *differs* if it lies outside, *can't tell* if it "
        "straddles a limit. A sweep *agrees* if more than half of its determined goals do, the hardest among them, and "
        "none differs; it *differs* if some goal differs and none agrees; it is *mixed* if both happen, and *can't "
        "tell* otherwise.",
        *_beside_rivals(found),
    ]


def findings(sweeps: Sequence[SweepResult], results: Path) -> list[str]:
    """What README.md says was found."""
    by_task = {sweep.task: sweep for sweep in reversed(sweeps)}  # of imagenet, small rather than spans
    rows = []
    for task, name in IN_README.items():
        if task in by_task:
            sweep = by_task[task]
            fit = sweep.end or sweep.fits[-1]
            values = (b_crit(fit), with_interval(fit.b_simple_avg))
            rows.append([f"{name}, {sweep.unit}s", *values, PLAIN[sweep.verdict]])
    header = ["task, and what B counts", "B_crit", "B_simple, averaged", "does it predict B_crit?"]
    return [in_short(unit_skills(points(sweeps, results))), *([table(header, rows)] if rows else [])]


def in_short(found: Sequence[UnitSkill]) -> str:
    """The claim, the answer, and its measure."""
    if not found:
        return f"{CLAIM} Too few tasks are measured here to compare it with cheap guesses."
    hardest, every = (
        _and([f"{_plain(part.scores[0].skill)} for {one.unit}s" for one, part in pairs])
        for pairs in ([(one, one.hardest) for one in found], [(one, one.every) for one in found])
    )
    return (
        f"{CLAIM} **{' '.join(map(_answer, found))}** The measure is skill, 1 − (mean error in ln B_crit)/(that of a "
        "constant, the median B_crit of the other tasks): 1 is perfect, 0 no better than the constant, negative worse. "
        f"At the hardest goal of each sweep it is {hardest}; over all determined goals, {every}."
    )


def _answer(one: UnitSkill) -> str:
    hardest, every = SAID[one.hardest.conclusion], SAID[one.every.conclusion]
    said = hardest if hardest == every else f"{every} over all goals, and at the hardest {hardest}"
    return f"For {one.unit}s, B_simple {said}."


def _misses(one: UnitSkill) -> str:
    """What a typical error is at the hardest goals, beside the constant's, the best rival's and what measuring alone
    would make."""
    part = one.hardest
    best = min(part.scores, key=lambda score: score.miss.value)
    better = f"; the best of the rivals below, {best.rival}, by {with_interval(best.miss, 2)}"
    return (
        f"At the hardest goals of {counted(part.tasks, 'task')} in {one.unit}s it misses by a factor of "
        f"{with_interval(part.miss, 2)}, the constant by {with_interval(part.scores[0].miss, 2)}"
        f"{better * (best is not part.scores[0])}; errors of measurement alone would make {number(part.noise, 2)}."
    )


def _too_few(sweeps: Sequence[SweepResult], found: Sequence[UnitSkill]) -> list[str]:
    """The units that the comparison leaves out, where it is made at all."""
    tasks = {sweep.unit: {other.task for other in sweeps if other.unit == sweep.unit} for sweep in sweeps}
    few = [
        f"{unit}s ({', '.join(sorted(names))})"
        for unit, names in tasks.items()
        if unit not in {one.unit for one in found}
    ]
    return [f"Too few tasks to compare count {_and(few)}."] if few and found else []


def _plain(estimate: Estimate) -> str:
    """Skills, slopes and correlations, of which some are near 0."""
    value, low, high = (f"{round(x, 2) + 0.0:.2f}" for x in (estimate.value, estimate.low, estimate.high))  # no -0.00
    return f"{value} [{low}, {high}]"


def _and(parts: Sequence[str]) -> str:
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _by_sweeps(sweeps: Sequence[SweepResult]) -> str:
    verdicts = Counter(sweep.verdict for sweep in sweeps)
    said = [f"{count} {verb[count > 1]}" for verdict, verb in VERBS.items() if (count := verdicts[verdict])]
    goals = [fit.verdict for sweep in sweeps for fit in sweep.fits]
    return (
        f"By the coarser rule of a factor of {FACTOR:g}, of {counted(len(sweeps), 'sweep')}: {', '.join(said)}. By "
        f"goals: {tally(goals)}."
    )


def _verdicts(sweeps: Sequence[SweepResult]) -> str:
    rows = []
    for sweep in sweeps:
        fit = sweep.end or sweep.fits[-1]
        rows.append(
            [
                sweep.name,
                f"**{sweep.verdict}** ({sweep.verdict_in_words})",
                with_interval(fit.ratio),
                b_crit(fit),
                with_interval(fit.b_simple_avg),
                f"{metric(sweep)} {fit.goal:g}",
            ]
        )
    return table(["sweep", "B_simple predicts B_crit?", "ratio", "B_crit", "B_simple, averaged", "to"], rows)


def _beside_rivals(found: Sequence[UnitSkill]) -> list[str]:
    """Each rival's miss and the skill against it, and how the two go together."""
    rows = []
    for one in found:
        misses = [with_interval(part.miss, 2) for part in (one.hardest, one.every)]
        rows.append([f"**{one.unit}s**", "B_simple", str(one.hardest.tasks), misses[0], "–", misses[1], "–"])
        over_all = {score.rival: score for score in one.every.scores}
        for score in one.hardest.scores:
            pair = [score, over_all.get(score.rival)]
            cells = [(with_interval(own.miss, 2), _plain(own.skill)) if own else ("–", "–") for own in pair]
            rows.append(["", score.rival, str(score.tasks), *cells[0], *cells[1]])
    header = ["B in", "predictor", "tasks", "misses by a factor of, hardest goals", "skill of B_simple against it"]
    header += ["misses by a factor of, all goals", "skill of B_simple against it"]
    if not rows:
        return []
    return [
        "## B_simple beside cheap guesses",
        table(header, rows),
        *(f"- {_together(one)}" for one in found),
        "A predictor's miss is exp of its mean absolute error in ln B_crit, every task weighing the same. B_simple is "
        "taken as it is. A rival's constants are fitted to all tasks of the same unit but the one that it predicts: a "
        "constant is their median B_crit; parameters, examples in the data and B_simple at step 0 enter as a power law "
        "(least squares in logarithms, its exponent held between 0 and 1). The paper's Table 1 is its B_crit at the "
        "end of the same task, on its own network and data. Intervals are a bootstrap over tasks in which everything "
        "is fitted again; in simulations of 5 to 16 independent tasks they hold the truth in 94 to 97%, but tasks that "
        "share their data aren't independent. The errors of each B_crit and B_simple are inside, as part of what "
        "differs from task to task.",
    ]


def _together(one: UnitSkill) -> str:
    said = [
        f"{where}, B_crit goes as B_simple to the power {_plain(line.slope)} (correlation of the logarithms "
        f"{_plain(line.correlation)})"
        for where, line in (("between tasks, at the hardest goals", one.between), ("along a run", one.within))
        if line is not None
    ]
    said.append(
        f"at the hardest goals B_simple is {with_interval(one.hardest.factor, 2)} times B_crit in the median; with "
        "each task's divided by the other tasks' factor, its skill against a constant is "
        f"{_plain(one.hardest.scaled)}, and {_plain(one.every.scaled)} over all goals"
    )
    return f"**{one.unit.capitalize()}s**: {'; '.join(said)}."
