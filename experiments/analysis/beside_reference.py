"""A sweep beside the reference's of the same name: does it reproduce it?

On the same kind of processor every run is equal bit for bit. Elsewhere sums are rounded otherwise, and runs part: each
then scatters around its twin, without leaning to either side. So runs are compared in pairs, the same batch size,
learning rate and seed in both, and at every goal four ratios decide, own over reference, each with its 95%
interval:

- the median of steps to the goal at learning rates below the reference's best, and
- at it and above: a learning rate that is too large makes the former faster and the latter slower, and may change
  neither the median of both nor B_crit;
- of B_crit, both fitted to the runs at the reference's best learning rates;
- of B_simple, averaged over each run up to the goal, from the sums of tr Σ and of |G|² over all pairs.

A goal is the same where all that are known lie within a factor of `SAME_STEPS` or `SAME_BATCH_SIZE` of 1 with their
intervals, and differs where an interval lies wholly outside. Runs that trained alike must measure alike: where losses
are equal but for rounding, B_simple is to be the same within `ALIKE`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from experiments.analysis.goal_fit import UNKNOWN, GoalFit
from experiments.analysis.paired_runs import (
    OF_AN_END,
    POINT,
    RUN,
    NoiseSums,
    b_crit_ratio,
    log_ratios,
    median_ratio,
    nearness,
    noise_ratio,
    pair,
)
from experiments.analysis.sweep_summary import SweepResult, read_sweep
from experiments.tables.reading import ONE_SWEEP, Tables, experiment
from noisescale.formatting import table, with_interval
from noisescale.pareto.fit import Estimate

SAME_STEPS, SAME_BATCH_SIZE = 1.1, 1.25
ALIKE = 1.01
ENOUGH = 0.75  # of the reference's runs

GoalAnswer = Literal["same", "differs", "can't tell"]


@dataclass(frozen=True)
class GoalBeside:
    """One goal: both fits, and the ratios own/reference over pairs of runs, unknown where these are too few."""

    own: GoalFit
    reference: GoalFit
    steps_below: Estimate
    steps_above: Estimate
    b_crit: Estimate
    b_simple: Estimate

    @property
    def goal(self) -> float:
        return self.own.goal

    @property
    def _limited(self) -> list[tuple[str, Estimate, float]]:
        """What is compared, its ratio, and the factor within which it is the same."""
        return [
            ("steps at small learning rates", self.steps_below, SAME_STEPS),
            ("steps at large learning rates", self.steps_above, SAME_STEPS),
            ("B_crit", self.b_crit, SAME_BATCH_SIZE),
            ("B_simple", self.b_simple, SAME_BATCH_SIZE),
        ]

    @property
    def departures(self) -> list[str]:
        """What differs, in words."""
        return [what for what, ratio, limit in self._limited if ratio.low > limit or ratio.high < 1 / limit]

    @property
    def answer(self) -> GoalAnswer:
        if self.departures:
            return "differs"
        known = [(ratio, limit) for _, ratio, limit in self._limited if not math.isnan(ratio.value)]
        steps = not (math.isnan(self.steps_below.value) and math.isnan(self.steps_above.value))
        inside = all(ratio.low >= 1 / limit and ratio.high <= limit for ratio, limit in known)
        return "same" if steps and inside else "can't tell"


@dataclass(frozen=True)
class Comparison:
    """`unlike`: why the two are different experiments, or None. `wanted`: the reference's runs. `new`: ours at points
    that it lacks; `taken`: ours that were taken over from it; `common`: ours of its other points. Of these `equal` are
    so bit for bit as far as both go, `rounded` have losses and metrics equal but for rounding, and the others part, in
    the median at step `parted_at`. `measured`: B_simple over the reference's in the former two.
    """

    name: str
    unlike: str | None
    wanted: int
    common: int = 0
    taken: int = 0
    new: int = 0
    equal: int = 0
    rounded: int = 0
    parted_at: float = math.nan
    measured: Estimate = UNKNOWN
    goals: Sequence[GoalBeside] = ()

    @property
    def sentence(self) -> str:
        """The answer."""
        if self.unlike:
            return f"{self.name} is not comparable with the reference, because {self.unlike}."
        if self.measured.low > ALIKE or self.measured.high < 1 / ALIKE:
            return (
                f"{self.name} differs from the reference: runs that trained alike measured "
                f"{with_interval(self.measured)} times its B_simple."
            )
        if differing := [goal for goal in self.goals if goal.departures]:
            where = ", ".join(f"{goal.goal:g}" for goal in differing)
            what = " and ".join(dict.fromkeys(what for goal in differing for what in goal.departures))
            return f"{self.name} differs from the reference at goal{'s' * (len(differing) > 1)} {where}: {what}."
        if self.common + self.taken < ENOUGH * self.wanted:
            return (
                f"{self.name} is not comparable with the reference yet, because it has fewer runs: "
                f"{self.common + self.taken} of its {self.wanted}."
            )
        if self.common == 0:
            return f"{self.name} goes on from the reference: {self.taken} runs taken over, {self.new} new."
        if self.equal == self.common:
            return f"{self.name} reproduces the reference, bit for bit."
        same = [goal for goal in self.goals if goal.answer == "same"]
        if not same:
            return (
                f"{self.name} is not comparable with the reference, because runs in common are too few, or scatter too "
                "much, to tell."
            )
        if len(same) == len(self.goals):
            return f"{self.name} reproduces the reference."
        open_at = ", ".join(f"{goal.goal:g}" for goal in self.goals if goal.answer == "can't tell")
        return (
            f"{self.name} reproduces the reference at {len(same)} of {len(self.goals)} goals; runs that got "
            f"to {open_at} are too few, or scatter too much, to tell."
        )

    @property
    def differs(self) -> bool:
        """Whether something is wrong, rather than missing."""
        return "differs" in self.sentence


def format_comparison(found: Comparison, unit: str) -> str:
    """For a terminal of 120 columns: how many runs are equal, each goal's values side by side, each goal's ratios with
    95% intervals, the answer."""
    if found.unlike:
        return found.sentence
    parted = found.common - found.equal - found.rounded
    when = f" (half of them by step {found.parted_at:,.0f})" if parted else ""
    over = "".join(f", {n} {what}" for n, what in ((found.taken, "taken over"), (found.new, "others")) if n)
    runs = (
        f"Beside the reference: {found.common} of its {found.wanted} runs made here{over}.\n"
        f"{found.equal} of them are equal bit for bit, {found.rounded} but for rounding, {parted} part{when}."
    )
    values, ratios = [], []
    for goal in found.goals:
        fits, means = (goal.own, goal.reference), (goal.steps_below, goal.steps_above, goal.b_crit, goal.b_simple)
        name = f"{goal.goal:g}"
        values.append([name, *(with_interval(getattr(fit, of)) for of in ("b_crit", "b_simple_avg") for fit in fits)])
        ratios.append([name, *map(_two_places, means), *(fit.verdict for fit in fits), goal.answer])
    header = ["goal", f"B_crit ({unit}s)", "reference", f"B_simple averaged ({unit}s)", "reference"]
    heads = ["goal", "steps, small lr", "steps, large lr", "B_crit", "B_simple", "verdict", "reference", "runs"]
    return "\n".join(
        [runs, "", table(header, values), "", "Ours/reference, run by run:", table(heads, ratios), "", found.sentence]
    )


def _two_places(ratio: Estimate) -> str:
    if math.isnan(ratio.value):
        return "–"
    shown = [f"{end:.2f}" for end in (ratio.value, ratio.low, ratio.high)]
    return shown[0] if len(set(shown)) == 1 else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def compare(own: Path, reference: Path) -> Comparison:
    """Of two analysed folders; `UserError` where one isn't."""
    ours, theirs = read_sweep(own), read_sweep(reference)
    wanted = len(theirs.tables.runs)
    if unlike := _unlike(ours.tables, theirs.tables):
        return Comparison(ours.name, unlike, wanted)
    pairs = pair(ours.tables.runs, theirs.tables.runs)
    taken = (pairs["finished_at"] == pairs["finished_at_reference"]) & (pairs["seconds"] == pairs["seconds_reference"])
    pairs = pairs[~taken]
    equal, near, parted = nearness(pairs, ours.tables.curves, theirs.tables.curves)
    noise = NoiseSums(ours.tables.curves), NoiseSums(theirs.tables.curves)
    alike = pairs[near]
    return Comparison(
        name=ours.name,
        unlike=None,
        wanted=wanted,
        common=len(pairs),
        taken=int(taken.sum()),
        new=len(ours.tables.runs) - len(taken),
        equal=int(equal.sum()),
        rounded=int((near & ~equal).sum()),
        parted_at=float(np.median(parted)) if len(parted) else math.nan,
        measured=noise_ratio(*(of.up_to(alike[run]) for of, run in zip(noise, RUN, strict=True))),
        goals=list(_goals(ours, theirs, pairs, noise)),
    )


def _unlike(ours: Tables, theirs: Tables) -> str | None:
    """Why the two aren't of one experiment."""
    for column in ONE_SWEEP:
        if ours.describe(column) != theirs.describe(column):
            return f"{column} is {ours.describe(column)} here and {theirs.describe(column)} there"
    mine, reference = (experiment(json.loads(tables.describe("config"))) for tables in (ours, theirs))
    for key in sorted(mine.keys() | reference.keys()):
        here, there = mine.get(key, "null"), reference.get(key, "null")
        if here != there:
            return f"{key} is {here} here and {there} there"
    return None


def _goals(
    ours: SweepResult, theirs: SweepResult, pairs: pd.DataFrame, noise: tuple[NoiseSums, NoiseSums]
) -> Iterator[GoalBeside]:
    """Those that both have, in our order."""
    fits = {fit.goal: fit for fit in theirs.fits}
    crossed = ours.crossings.merge(theirs.crossings, on=["goal", *POINT], suffixes=("", "_reference"))
    crossed = crossed[(crossed["steps"] > 0) & (crossed["steps_reference"] > 0)]
    crossed = crossed.merge(pairs[[*POINT, *RUN, *OF_AN_END]], on=POINT)
    tuned = theirs.crossings[theirs.crossings["best"]].drop_duplicates(["goal", "batch_size"])
    crossed = crossed.merge(tuned[["goal", "batch_size", "lr"]].rename(columns={"lr": "tuned_lr"}), "left")
    for fit in ours.fits:
        if fit.goal not in fits:
            continue
        rows = crossed[crossed["goal"] == fit.goal]
        logs, below = log_ratios(rows), (rows["lr"] < rows["tuned_lr"]).to_numpy()
        best = rows[rows["lr"] == rows["tuned_lr"]]
        both = rows[rows["reached"] & rows["reached_reference"]]
        ends = zip(noise, RUN, ("steps", "steps_reference"), strict=True)
        sums = [of.up_to(both[run], both[end]) for of, run, end in ends]
        steps = median_ratio(logs[below]), median_ratio(logs[~below])
        yield GoalBeside(fit, fits[fit.goal], *steps, b_crit_ratio(best), noise_ratio(*sums))
