"""Skill against planted tasks in which B_simple predicts B_crit, is off by a factor, or has nothing to do with it."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.analysis.skill import (
    CONSTANT,
    DATA,
    PARAMETERS,
    START,
    TABLE1,
    Point,
    between,
    data_size,
    points,
    skill,
    unit_skills,
    within,
)
from experiments.analysis.sweep_summary import summarise
from experiments.analysis.task_bootstrap import TaskBootstrap
from experiments.config import CONFIGS
from noisescale.pareto.fit import Estimate

TASKS, GOALS = 10, 5
RESULTS = CONFIGS.parent / "results" / "reference"


def known(value: float, error: float = 0.1) -> Estimate:
    return Estimate(value, value * np.exp(-1.96 * error), value * np.exp(1.96 * error))


def planted(kind: str, seed: int) -> list[Point]:
    """Tasks whose B_crit spreads over two decades and grows eightfold along each run; B_simple as `kind` says."""
    rng = np.random.default_rng(seed)
    found = []
    for task in range(TASKS):
        last, other = np.exp(rng.normal(6, 1.3, size=2))
        for goal, growth in enumerate(np.geomspace(1 / 8, 1, GOALS)):
            noise = np.exp(rng.normal(0, 0.15, size=2))
            b_crit = 300 * noise[0] if kind == "one B_crit" else last * growth * noise[0]
            b_simple = {
                "holds": last * growth * noise[1],
                "off by a factor": 10 * last * growth * noise[1],
                "independent": other * np.exp(rng.normal(0, 0.7)),
                "one B_crit": 300 * np.exp(rng.normal(0, 0.5)),
            }[kind]
            rivals = {PARAMETERS: other * 1000, DATA: last**0.5, START: last}
            found.append(
                Point(f"{task}-small", str(task), "image", goal == GOALS - 1, known(b_crit), known(b_simple), rivals)
            )
    return found


@pytest.mark.parametrize("seed", range(3))
def test_where_the_claim_holds_b_simple_beats_a_constant(seed):
    (one,) = unit_skills(planted("holds", seed))
    for part in (one.hardest, one.every):
        assert part.conclusion == "better" and part.scores[0].skill.low > 0.5
        assert part.miss.value < 1.3 and part.factor.low < 1 < part.factor.high
    assert one.within is not None
    for line in (one.between, one.within):
        assert line.slope.value == pytest.approx(1, abs=0.2) and line.correlation.low > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_factor_that_all_tasks_share_is_told_from_noise(seed):
    (one,) = unit_skills(planted("off by a factor", seed))
    for part in (one.hardest, one.every):
        assert part.conclusion == "off by a factor"
        assert part.factor.value == pytest.approx(10, rel=0.3) and part.miss.low > 7
        assert part.scaled.low > 0.5 > 0 > part.scores[0].skill.value
    assert one.between.slope.value == pytest.approx(1, abs=0.2) and one.between.correlation.low > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_b_simple_that_has_nothing_to_do_with_b_crit_has_no_skill(seed):
    (one,) = unit_skills(planted("independent", seed))
    for part in (one.hardest, one.every):
        assert part.conclusion in ("worse", "can't tell") and part.scores[0].skill.value < 0.2
    assert one.within is not None
    for line in (one.between, one.within):
        assert line.slope.low < 0 < line.slope.high or abs(line.slope.value) < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_where_b_crit_is_the_same_everywhere_a_factor_of_three_proves_nothing(seed):
    """Every ratio lies within a factor of 3 or so of 1, and a constant is still the better guess."""
    chosen = planted("one B_crit", seed)
    ratios = [point.b_simple.value / point.b_crit.value for point in chosen]
    assert np.mean([1 / 3 < ratio < 3 for ratio in ratios]) > 0.9
    (one,) = unit_skills(chosen)
    assert one.every.conclusion == "worse" and one.every.scores[0].skill.high < -0.5
    assert one.hardest.conclusion in ("worse", "can't tell") and one.hardest.scores[0].skill.value < 0


def test_a_constant_in_place_of_b_simple_has_neither_skill_nor_slope():
    chosen = [replace(point, b_simple=known(300.0)) for point in planted("holds", 0)]
    (one,) = unit_skills(chosen)
    assert one.every.conclusion != "better" and one.hardest.conclusion != "better"
    assert one.between.slope == Estimate(0.0, 0.0, 0.0)


def test_a_rival_that_knows_beats_b_simple_and_one_that_does_not_loses():
    part = skill([point for point in planted("independent", 0) if point.hardest])
    by_rival = {score.rival: score for score in part.scores}
    assert list(by_rival) == [CONSTANT, PARAMETERS, DATA, START]
    assert by_rival[START].miss.value < 1.3 and by_rival[START].skill.high < -1
    assert by_rival[DATA].miss.value < by_rival[CONSTANT].miss.value, "B_crit is its square: exponents end at 1"
    assert by_rival[PARAMETERS].miss.value > by_rival[START].miss.value


def exact(values: dict[str, tuple[float, float]]) -> list[Point]:
    return [
        Point(task, task, "token", True, known(b_crit), known(b_simple), {TABLE1: b_crit * 2})
        for task, (b_crit, b_simple) in values.items()
    ]


def test_skill_by_hand():
    """B_crit 1, 2, 4, 16: without its own, each one's median in logarithms is 4, 4, 2, 2 (in ln 2: 2, 2, 1, 1)."""
    part = skill(exact({"a": (1, 2), "b": (2, 4), "c": (4, 8), "d": (16, 32)}))
    constant, table1 = part.scores
    assert np.log2(constant.miss.value) == pytest.approx((2 + 1 + 1 + 3) / 4)
    assert np.log2(part.miss.value) == pytest.approx(1) and part.factor.value == pytest.approx(2)
    assert constant.skill.value == pytest.approx(1 - 4 / 7)
    assert (table1.rival, table1.skill.value) == (TABLE1, pytest.approx(0))
    assert part.scaled.value == pytest.approx(1)
    assert part.noise == pytest.approx(np.exp(np.sqrt(2 / np.pi) * np.hypot(0.1, 0.1)))


def test_a_task_counts_once_however_many_sweeps_and_goals_it_has():
    one = exact({"a": (1, 2), "b": (2, 4), "c": (4, 8), "d": (16, 64)})
    more = [*one, *(replace(one[-1], sweep=f"d-{i}") for i in range(5))]
    assert skill(more).miss.value == pytest.approx(skill(one).miss.value)
    assert skill(more).scores[0].skill.value == pytest.approx(skill(one).scores[0].skill.value)
    assert between(more).slope.value == pytest.approx(between(one).slope.value)


def test_along_a_run_differences_between_tasks_do_not_count():
    """Within each sweep B_crit goes as B_simple squared, between sweeps as its inverse."""
    chosen = [
        Point(f"{task}", f"{task}", "image", step == 2, known(2.0 ** (2 * step - task)), known(2.0 ** (step + task)))
        for task in range(4)
        for step in range(3)
    ]
    line = within(chosen)
    assert line is not None and line.slope.value == pytest.approx(2) and line.correlation.value == pytest.approx(1)
    assert between([point for point in chosen if point.hardest]).slope.value == pytest.approx(-1)
    assert within([point for point in chosen if point.hardest]) is None, "one goal of each sweep says nothing"


def test_units_are_apart_and_need_four_tasks():
    chosen = planted("holds", 0)
    tokens = [replace(point, unit="token") for point in chosen if int(point.task) < 4]
    frames = [replace(point, unit="frame") for point in chosen if int(point.task) < 3]
    assert [(one.unit, one.hardest.tasks) for one in unit_skills([*frames, *tokens, *chosen])] == [
        ("image", TASKS),
        ("token", 4),
    ]


def test_the_bootstrap_is_the_same_each_time_and_takes_tasks_in_any_order():
    values = np.random.default_rng(1).normal(size=12)
    tasks, again = (TaskBootstrap([str(i) for i in range(12)]) for _ in range(2))
    assert (tasks.median(values) == again.median(values)).all()
    assert tasks.median(values)[0] == np.median(values) and tasks.median(values[::-1])[0] == np.median(values)
    assert tasks.median(values[:11].repeat(2)[:12])[0] == np.median(values[:11].repeat(2)[:12])


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [5, 8, 16])
@pytest.mark.parametrize("error", [0.4, 1.0])
def test_the_interval_of_the_skill_holds_the_truth(tasks, error):
    """Which is that of many samples of as many tasks."""
    rng = np.random.default_rng(0)
    names = [str(i) for i in range(tasks)]
    ours, theirs, found = [], [], []
    for _ in range(300):
        y = rng.normal(6, 1.3, tasks)
        x = y + rng.normal(0, error, tasks)
        values = zip(names, np.exp(x), np.exp(y), strict=True)
        of_one = skill([Point(name, name, "image", True, known(b_crit), known(b)) for name, b, b_crit in values])
        ours.append(np.log(of_one.miss.value))
        theirs.append(np.log(of_one.scores[0].miss.value))
        found.append(of_one.scores[0].skill)
    truth = 1 - np.mean(ours) / np.mean(theirs)
    assert 0.91 <= np.mean([one.low <= truth <= one.high for one in found]) <= 0.99


def test_of_the_committed_tables_every_data_set_has_a_size():
    sizes = {sweep.task: data_size(sweep.tables.describe("data")) for sweep in summarise(RESULTS)}
    assert {sizes[task] for task in ("mnist", "svhn", "cifar10", "digits")} == {60_000, 8_000, 50_000, 1_500}
    assert all(np.isnan(sizes[task]) for task in ("cartpole", "quadratic"))


def test_of_the_committed_tables_points_are_what_both_sides_determine():
    sweeps = summarise(RESULTS)
    found = points(sweeps, RESULTS)
    assert len(found) == sum(fit.verdict != "not determined" for sweep in sweeps for fit in sweep.fits)
    assert all(np.isfinite([e.low, e.high]).all() and e.low > 0 for p in found for e in (p.b_crit, p.b_simple))
    hardest = {point.sweep: point.b_crit for point in found if point.hardest}
    assert hardest["svhn-small"] == next(sweep.b_crit for sweep in sweeps if sweep.name == "svhn-small")
    assert [one.unit for one in unit_skills(found)][:2] == ["image", "token"]
