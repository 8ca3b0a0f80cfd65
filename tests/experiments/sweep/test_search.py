"""The search finds the best learning rate, whatever order the runs end in, and asks for nothing twice."""

import math
import random
from dataclasses import replace

import pytest

from experiments.config import load
from experiments.sweep.search import Outcome, Point, grid_lr, wanted

SWEEP = replace(load(["task=digits"]).sweep, batch_sizes=(4, 64), seeds=3, goals=(0.3, 0.1), widen=6, ratio=2.0)


def outcome(point: Point, best_j: float, noise: float = 0.0) -> Outcome:
    """A parabola in log learning rate around `best_j`, in lattice steps from the grid's centre; far too large
    diverges.
    """
    j = math.log(point.lr / grid_lr(SWEEP, point.batch_size, 0), SWEEP.ratio)
    if j > best_j + 2.5:
        return Outcome([math.inf, math.inf], True)
    shift = noise * random.Random(repr(point)).gauss(0, 1)
    base = 0.1 * (j - best_j) ** 2 + shift
    return Outcome([100 * math.exp(base), 300 * math.exp(base + 0.1 * (j - best_j + 0.4) ** 2)], False)


def search(best_j: float, noise: float = 0.0, seed: int = 0, one_by_one: bool = False) -> dict[Point, Outcome]:
    order, finished = random.Random(seed), {}
    while points := wanted(SWEEP, finished):
        assert not set(points) & set(finished), "a finished run was asked for again"
        assert len(set(points)) == len(points)
        chosen = [order.choice(points)] if one_by_one else points
        finished |= {point: outcome(point, best_j, noise) for point in chosen}
    return finished


@pytest.mark.parametrize("best_j", [-4, -1.2, 0, 0.4, 3, 5])
def test_the_best_has_all_seeds_and_lies_inside(best_j):
    finished = search(best_j)
    for size in SWEEP.batch_sizes:
        full = sorted(
            lr
            for lr in {p.lr for p in finished if p.batch_size == size}
            if all(Point(size, lr, seed) in finished for seed in range(SWEEP.seeds))
        )
        for goal in range(2):
            means = [sum(math.log(finished[Point(size, lr, s)].steps[goal]) for s in range(3)) for lr in full]
            assert 0 < means.index(min(means)) < len(full) - 1
        nearest = grid_lr(SWEEP, size, round(best_j))
        assert any(lr == pytest.approx(nearest) for lr in full)


def test_the_order_of_completion_does_not_matter():
    reference = set(search(1.3, noise=0.05))
    for seed in range(5):
        assert set(search(1.3, noise=0.05, seed=seed, one_by_one=True)) == reference


def test_widening_is_bounded_and_hopeless_sizes_end():
    sweep, finished = SWEEP, {}
    while points := wanted(sweep, finished):
        finished |= {point: Outcome([math.inf, math.inf], False) for point in points}
    per_size = len(finished) / len(sweep.batch_sizes)
    assert per_size <= sweep.points + sweep.widen
    sweep, finished = SWEEP, {}
    while points := wanted(sweep, finished):
        finished |= {point: Outcome([math.inf, math.inf], True) for point in points}
    assert min(p.lr for p in finished if p.batch_size == 4) == pytest.approx(grid_lr(sweep, 4, -1 - sweep.widen))


def test_the_grid_is_centred_on_the_rule():
    assert grid_lr(SWEEP, 64, 0) == pytest.approx(SWEEP.lr / (1 + SWEEP.noise / 64), rel=1e-3)
    assert grid_lr(SWEEP, 64, 2) == pytest.approx(4 * grid_lr(SWEEP, 64, 0), rel=1e-3)
