"""A learning rate that is cut by ten at given values of the metric (Fig. 10), and where on a curve that was.

A span ends where the mean of its last `patience` evaluations passes its cut. That is a function of the curve alone, so
the loop, the search and the analysis find the same spans, and a record needs no more than its curve.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

CUT = 0.1
Direction = Literal["min", "max"]


def passed(value: float, cut: float, direction: Direction) -> bool:
    """Whether `value` is at least as good as `cut` (NaN never is)."""
    return value <= cut if direction == "min" else value >= cut


def beginnings(metric: Sequence[float], direction: Direction, cuts: Sequence[float], patience: int) -> list[int]:
    """Indices of the evaluations at which spans begin: 0, and for each cut that was passed the one that passed it."""
    found = [0]
    for end in range(1, len(metric)):
        if len(found) > len(cuts):
            break
        recent = metric[max(end + 1 - patience, found[-1] + 1) : end + 1]
        if len(recent) == patience and passed(float(np.mean(recent)), cuts[len(found) - 1], direction):
            found.append(end)
    return found
