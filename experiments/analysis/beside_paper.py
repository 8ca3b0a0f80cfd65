"""Our sweep of a task beside the paper's digitised points of the same one: goal by goal, in numbers and in words."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.analysis import paper
from experiments.analysis.sweep_summary import SweepResult
from experiments.analysis.verdict import FACTOR
from noisescale.formatting import number
from noisescale.pareto.fit import Estimate, ParetoFit, fit_pareto

NAMES = ("s_min", "e_min", "b_crit")
LABELS = {"s_min": "S_min", "e_min": "E_min", "b_crit": "B_crit"}


@dataclass(frozen=True)
class Beside:
    """One goal that both have: our values, and the same fit of the paper's points."""

    goal: float
    ours: dict[str, Estimate]
    theirs: ParetoFit

    def ratio(self, name: str) -> float:
        """Ours over the paper's."""
        return self.ours[name].value / getattr(self.theirs, name).value

    def overlap(self, name: str) -> bool:
        """Whether the two 95% intervals overlap."""
        ours, theirs = self.ours[name], getattr(self.theirs, name)
        return ours.low <= theirs.high and theirs.low <= ours.high


def beside_paper(sweep: SweepResult, results: Path) -> list[Beside]:
    """Goals that our sweep and the digitised points share and where both B_crit are determined, from easy to hard."""
    rows = paper.points(results)
    rows = rows[rows["task"] == paper.POINTS_OF.get(sweep.task)]
    found = []
    for fit in sweep.determined:
        mine: pd.DataFrame = rows[(rows["goal"] - fit.goal).abs() <= 1e-9 * abs(fit.goal)]
        if mine["batch_size"].nunique() < 4:
            continue
        theirs = fit_pareto(mine["batch_size"], mine["steps"])
        if theirs.determined:
            found.append(Beside(fit.goal, {name: getattr(fit, name) for name in NAMES}, theirs))
    return found


def words(pairs: list[Beside]) -> list[str]:
    """What the numbers say, one sentence each for B_crit, S_min, E_min and the trend."""
    if not pairs:
        return ["No goal is determined in both, so there is nothing to compare."]
    return [*(_sentence(pairs, name) for name in ("b_crit", "s_min", "e_min")), *_trend(pairs)]


def _sentence(pairs: list[Beside], name: str) -> str:
    ratios = [pair.ratio(name) for pair in pairs]
    agreeing = [pair for pair in pairs if pair.overlap(name)]
    near = sum(1 / FACTOR <= ratio <= FACTOR for ratio in ratios)
    span = number(ratios[0], 2) if len(ratios) == 1 else f"{number(min(ratios), 2)} to {number(max(ratios), 2)}"
    goals = "goal" if len(pairs) == 1 else "goals"
    verb = "agree" if len(agreeing) == len(pairs) else "disagree" if not agreeing else "agree in part"
    return (
        f"**{LABELS[name]}: they {verb}.** Ours is {span} times the paper's over {len(pairs)} common {goals}; the "
        f"95% intervals overlap at {len(agreeing)}, and {near} of the ratios are within a factor of {FACTOR:g} of 1."
    )


def _trend(pairs: list[Beside]) -> list[str]:
    if len(pairs) < 2:
        return []
    first, last = pairs[0], pairs[-1]
    ours = last.ours["b_crit"].value / first.ours["b_crit"].value
    theirs = last.theirs.b_crit.value / first.theirs.b_crit.value
    same = (ours > 1) == (theirs > 1)
    return [
        f"**The trend {'agrees' if same else 'disagrees'}.** From goal {first.goal:g} to {last.goal:g} our B_crit "
        f"changes by a factor of {number(ours, 2)}, the paper's by {number(theirs, 2)}."
    ]
