"""Crossings against curves whose crossing is known."""

import numpy as np
import pytest
from synthetic_tables import Planted, plant

from experiments.analysis.crossings import cross, crossings


def at(step, metric, goal, direction="min"):
    steps, reached = crossings(np.array(step, float), np.array(metric, float), direction, [goal])
    return steps[0], reached[0]


def test_linear_in_log_steps():
    assert at([1, 10, 100], [3, 2, 1], 1.5) == (pytest.approx(10**1.5), True)


def test_a_rising_metric_is_the_mirror_of_a_falling_one():
    step, metric = [0, 1, 2, 4, 8, 16], np.array([0.9, 0.8, 0.85, 0.5, 0.52, 0.1])
    for goal in (0.7, 0.3):
        assert at(step, metric, goal) == at(step, -metric, -goal, "max")


def test_between_step_zero_and_the_first_one_it_is_linear_in_steps():
    assert at([0, 4, 8], [1.0, 0.0, 0.0], 0.75) == (pytest.approx(1.0), True)


def test_met_at_the_start_takes_no_steps():
    assert at([0, 1, 2], [0.1, 0.1, 0.1], 0.5) == (0.0, True)


def test_not_reached_is_a_bound_at_the_last_step():
    assert at([0, 1, 50], [0.9, 0.8, 0.7], 0.5) == (50.0, False)


@pytest.mark.parametrize("goal, expected", [(0.5, 100 * 2**0.5), (0.3, 200 * 2**0.2)])
def test_a_plateau_does_not_pull_the_crossing_towards_its_middle(goal, expected):
    step = [1, 10, 50, 100, 200, 400]
    metric = [1, 0.6, 0.6, 0.6, 0.4, -0.1] if goal == 0.5 else [0.4] * 5 + [-0.1]
    assert at(step, metric, goal) == (pytest.approx(expected), True)


def test_one_lucky_evaluation_is_no_crossing_but_holding_it_is():
    step = [1, 2, 4, 8, 16, 32, 64]
    lucky = [1, 0.9, 0.3, 0.9, 0.9, 0.9, 0.9]
    assert not at(step, lucky, 0.5)[1]
    held = [1, 0.9, 0.3, 0.55, 0.3, 0.3, 0.3]
    steps, reached = at(step, held, 0.5)
    assert reached and 2 < steps <= 4


def test_short_and_diverged_curves():
    assert at([0], [0.9], 0.5) == (0.0, False)
    assert at([0, 3], [0.9, np.nan], 0.5) == (3.0, False)
    assert at([0, 3], [np.nan, np.nan], 0.5) == (3.0, False)
    assert at([], [], 0.5) == (0.0, False)
    assert at([1, 2, 4, 8], [0.9, 0.1, 0.1, np.nan], 0.5)[1]


def test_noise_gives_no_bias_that_a_running_minimum_has():
    rng = np.random.default_rng(0)
    step = np.unique(np.round(2 ** np.arange(0, 14, 1 / 6)))
    truth = np.log(100.0)
    found, minimum = [], []
    for _ in range(300):
        metric = 0.5 - 0.1 * (np.log(step) - truth) + 0.03 * rng.standard_normal(len(step))
        found.append(np.log(at(step, metric, 0.5)[0]) - truth)
        minimum.append(np.log(step[np.argmax(metric <= 0.5)]) - truth)
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found)) < 0.02 + 3 * error
    assert np.mean(minimum) < -0.1


def test_every_run_and_goal_has_a_row_and_the_planted_steps_come_back():
    truth = Planted(seeds=1)
    tables = plant(truth)
    rows = cross(tables, [0.5, 0.1, 0.001])
    assert len(rows) == 3 * len(tables.runs)
    centre = tables.runs.groupby("batch_size")["lr"].median()
    for goal in (0.5, 0.1):
        for size in truth.batch_sizes:
            mine = rows[(rows["goal"] == goal) & (rows["batch_size"] == size) & (rows["lr"] == centre[size])]
            assert mine["steps"].item() == pytest.approx(truth.steps(goal, size), rel=0.01)
            assert mine["examples"].item() == pytest.approx(size * mine["steps"].item())
    hopeless = rows[rows["goal"] == 0.001]
    assert not hopeless["reached"].any()
    last = hopeless.merge(tables.runs, on="run_id")
    assert (last["steps"] == last["step"]).all()
