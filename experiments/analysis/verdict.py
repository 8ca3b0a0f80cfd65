"""Does B_simple, averaged over a run, predict B_crit? The rule, for one goal and for a sweep.

At a goal: *agree* if the 95% interval of ⟨B_simple⟩/B_crit lies within a factor of three of 1, *differ* if it lies
wholly outside, *can't tell* if it straddles a limit, *not determined* if either of the two isn't. A sweep's goals are
judged together by `judge_sweep`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from noisescale.pareto.fit import Estimate

FACTOR = 3.0

GoalVerdict = Literal["agree", "differ", "can't tell", "not determined"]
GOAL_VERDICTS: tuple[GoalVerdict, ...] = get_args(GoalVerdict)
SweepVerdict = Literal["agree", "differ", "mixed", "can't tell", "not determined"]


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


def judge_sweep(goals: Sequence[str]) -> SweepVerdict:
    """The rule for a sweep, from the verdicts of its goals, easy to hard. Goals that are not determined don't count.

    *agree*: more than half of the goals agree, the hardest among them, and none differs;
    *differ*: some goal differs and none agrees: the claim is about every goal, so that one interval outside refutes it;
    *mixed*: some goal agrees and another differs;
    *can't tell*: no goal differs, but too few agree, or not the hardest;
    *not determined*: no goal counts.
    """
    counted = [verdict for verdict in goals if verdict != "not determined"]
    if not counted:
        return "not determined"
    agreeing = counted.count("agree")
    if "differ" in counted:
        return "mixed" if agreeing else "differ"
    return "agree" if counted[-1] == "agree" and agreeing > len(counted) / 2 else "can't tell"


def tally(goals: Sequence[str], what: str = "goal") -> str:
    """How many goals say what: 'agree at 4 of 6 goals, can't tell at 2'."""
    counts = Counter(goals)
    first, *others = [verdict for verdict in GOAL_VERDICTS if counts[verdict]]
    said = [f"{first} at {counts[first]} of {len(goals)} {what}s", *(f"{other} at {counts[other]}" for other in others)]
    return ", ".join(said)


def in_words(goals: Sequence[float], verdicts: Sequence[str]) -> str:
    """A sweep's goals, easy to hard, by number, and the hardest that counts by name: 'agree at 5 of 7 goals, can't tell
    at 2; at the hardest, 0.01, agree'."""
    judged = [(goal, verdict) for goal, verdict in zip(goals, verdicts, strict=True) if verdict != "not determined"]
    return tally(verdicts) + (f"; at the hardest, {judged[-1][0]:g}, {judged[-1][1]}" if judged else "")
