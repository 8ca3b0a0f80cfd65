"""Does B_simple, averaged over a run, predict B_crit? The rule, for one goal and for a task.

At a goal: *agree* if the 95% interval of ⟨B_simple⟩/B_crit lies within a factor of three of 1, *differ* if it lies
wholly outside, *can't tell* if it straddles a limit, *not determined* if either of the two isn't. For a task: *agree*
if some goal agrees and none differs, *differ* if some goal differs and none agrees, *mixed* if both happen, else
*can't tell* if a ratio was measured at all, else *not determined*.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from noisescale.pareto.fit import Estimate

FACTOR = 3.0

GoalVerdict = Literal["agree", "differ", "can't tell", "not determined"]
GOAL_VERDICTS: tuple[GoalVerdict, ...] = get_args(GoalVerdict)
TaskVerdict = Literal["agree", "differ", "mixed", "can't tell", "not determined"]


def ratio(top: Estimate, bottom: Estimate) -> Estimate:
    """top/bottom of two independent estimates; their distances in log to each end add in squares. An open end stays
    open."""
    value = top.value / bottom.value
    if not value > 0:
        return Estimate(value, 0.0, math.inf)
    down = math.hypot(_distance(top.low, top.value), _distance(bottom.value, bottom.high))
    up = math.hypot(_distance(top.value, top.high), _distance(bottom.low, bottom.value))
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def _distance(low: float, high: float) -> float:
    return math.log(high / low) if low > 0 and math.isfinite(high) else math.inf


def judge(found: Estimate, determined: bool) -> GoalVerdict:
    """The rule for one goal; `determined` says whether both B_simple and B_crit are."""
    if not determined or not math.isfinite(found.value):
        return "not determined"
    if found.low >= 1 / FACTOR and found.high <= FACTOR:
        return "agree"
    if found.low > FACTOR or found.high < 1 / FACTOR:
        return "differ"
    return "can't tell"


def judge_task(goals: Iterable[str]) -> TaskVerdict:
    """The rule for a task, from the verdicts of its goals."""
    seen = set(goals)
    if {"agree", "differ"} <= seen:
        return "mixed"
    for verdict in ("agree", "differ", "can't tell"):
        if verdict in seen:
            return verdict
    return "not determined"


def tally(goals: Sequence[str], what: str = "goal") -> str:
    """How many goals say what: 'agree at 4 of 6 goals, can't tell at 2'."""
    counts = Counter(goals)
    first, *others = [verdict for verdict in GOAL_VERDICTS if counts[verdict]]
    said = [f"{first} at {counts[first]} of {len(goals)} {what}s", *(f"{other} at {counts[other]}" for other in others)]
    return ", ".join(said)
