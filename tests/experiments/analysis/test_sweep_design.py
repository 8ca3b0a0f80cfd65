"""A sweep's design: each check against grids that just pass it and just don't, and what mending costs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from synthetic_tables import Planted, plant, save

from experiments.analysis.design_cost import new_sizes, repairs
from experiments.analysis.learning_rate_choice import Grid
from experiments.analysis.sweep_design import Design, design
from experiments.analysis.sweep_fit import analyse
from experiments.analysis.sweep_summary import read_sweep


def grid(size: int, steps: float, seeds: int = 3, best: int = 1, reached: bool = True) -> Grid:
    """Three learning rates, of which `best` takes the fewest steps."""
    lrs = np.array([0.1, 0.2, 0.4])
    took = np.full((3, seeds), 2 * steps)
    took[best] = steps
    done = np.full((3, seeds), reached)
    return Grid(size, lrs, lrs, np.arange(seeds), took, done, np.zeros((3, seeds), bool))


def sound() -> list[Grid]:
    return [grid(10, 900), grid(40, 250), grid(160, 30)]


def test_a_design_that_just_passes_has_no_fault():
    found = design(sound(), 40.0)
    assert found == Design((10, 40, 160), (0, 0, 0), (3, 3, 3), 4.0, 4.0, pytest.approx(30))
    assert found.faults == {}


@pytest.mark.parametrize(
    "change, b_crit, check, said",
    [
        ({1: grid(40, 250, best=2)}, 40, "learning rate", "best learning rate on the edge of its grid at B = 40"),
        ({0: grid(10, 900, seeds=2)}, 40, "seeds", "fewer than 3 seeds (2) at B = 10"),
        ({}, 39, "range", "B_crit is only 3.9 times above the smallest batch size, 10"),
        ({}, 41, "range", "B_crit is only 3.9 times below the largest, 160"),
        ({}, np.nan, "range", "B_crit isn't known"),
        ({2: grid(160, 29)}, 40, "steps", "only 29 steps at B = 160"),
    ],
)
def test_each_check_alone(change, b_crit, check, said):
    found = design([change.get(i, one) for i, one in enumerate(sound())], b_crit)
    assert found is not None and found.faults == {check: said}


def test_batch_sizes_that_never_reach_the_goal_do_not_count():
    """Neither for the range nor for the steps at the largest."""
    found = design([*sound(), grid(640, 5, seeds=1, best=0, reached=False)], 40.0)
    assert found is not None and (found.sizes, found.faults) == ((10, 40, 160), {})
    assert design([grid(10, 900, reached=False)], 40.0) is None


def test_one_learning_rate_is_open_at_both_ends():
    only = replace(grid(40, 250), lrs=np.array([0.2]), tried=np.array([0.2]), steps=np.full((1, 3), 250.0))
    only = replace(only, reached=np.ones((1, 3), bool), diverged=np.zeros((1, 3), bool))
    found = design([grid(10, 900), only, grid(160, 30)], 40.0)
    assert found is not None and found.open_ends == (0, 2, 0)


@pytest.mark.parametrize(
    "sizes, b_crit, added",
    [
        ((10, 40, 160), 40, {}),
        ((10, 40, 160), 100, {640: 160}),
        ((10, 40, 160), 200, {640: 160, 2560: 160}),
        ((10, 40, 80, 160), 80, {320: 160}),
        ((16, 32, 64, 128, 256), 8, {2: 16, 4: 16, 8: 16}),
        ((10, 40, 160), np.nan, {}),
        ((10,), 40, {}),
    ],
)
def test_batch_sizes_to_add_continue_the_last_step(sizes, b_crit, added):
    found = Design(sizes, (0,) * len(sizes), (3,) * len(sizes), b_crit / sizes[0], sizes[-1] / b_crit, 100.0)
    assert new_sizes(found, b_crit) == added


@pytest.fixture
def swept(tmp_path):
    """Sizes 1 … 64 with B_crit 30 at 0.2; a run takes a second an example."""
    tables = plant(Planted(batch_sizes=(1, 4, 16, 64), seeds=2))
    runs = tables.runs
    runs["seconds"] = runs["batch_size"].astype(float)
    analyse(save(tables, tmp_path / "planted-small"), [0.2])
    return read_sweep(tmp_path / "planted-small")


def test_what_mending_costs(swept):
    (fit,) = swept.fits
    checked = design(swept.grids(fit.goal), fit.b_crit.value)
    assert checked is not None and list(checked.faults) == ["seeds", "range"]
    assert fit.design == "; ".join(checked.faults.values()), "the table says the same"
    seeds, sizes = repairs(swept, fit, checked)
    assert (seeds.what, seeds.seconds) == ("3 seeds at 4 batch sizes", 3 * (1 + 4 + 16 + 64))
    longer = (fit.e_min.value + fit.s_min.value * 256) / (fit.e_min.value + fit.s_min.value * 64)
    assert (sizes.what, sizes.seconds) == ("B = 256", pytest.approx(10 * 64 * longer))
    few = repairs(swept, fit, replace(checked, steps=10.0))[-1]
    assert few.at_least and few.seconds == pytest.approx(3 * float(swept.tables.runs["seconds"].sum()))
    edge = repairs(swept, fit, replace(checked, open_ends=(0, 2, 0, 1)))[0]
    assert (edge.what, edge.seconds) == ("learning rates beyond the grid at 2 batch sizes", 2 * 3 * 4 + 3 * 64)


def test_a_larger_batch_size_that_was_tried_in_vain_needs_longer_runs(swept):
    runs = swept.tables.runs
    unreached = pd.concat([runs, runs.assign(batch_size=256)])
    tried = replace(swept, tables=replace(swept.tables, runs=unreached))
    fit = swept.fits[0]
    checked = design(swept.grids(fit.goal), fit.b_crit.value)
    assert checked is not None
    assert repairs(tried, fit, checked)[-1].what == "B = 256 (longer runs)"
