"""Planted sweeps beside a planted reference: rounding is called reproduced, faults are not."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_tables import Planted, plant, save

from experiments.analysis.beside_reference import Comparison, compare, format_comparison
from experiments.analysis.paired_runs import NoiseSums, log_ratios, median_ratio, noise_ratio
from experiments.analysis.sweep_fit import analyse
from experiments.errors import UserError
from experiments.tables.reading import Tables
from noisescale.pareto.fit import Estimate

GOALS = [0.5, 0.2]
TRUTH = Planted(
    scatter=0.1, norm_noise=1.0, batch_sizes=(1, 4, 16, 64, 256, 1024), lr_steps=(-2, -1, 0, 1), budget=60.0
)


CONFIG = '{"measure": {"probe_examples": 64}, "task": {"name": "digits"}, "max_steps": 100000}'


def planted(truth: Planted) -> Tables:
    found = plant(truth, seed=1)
    return replace(found, runs=found.runs.assign(config=CONFIG))


def analysed(tables: Tables, folder: Path) -> Path:
    save(tables, folder)
    analyse(folder, GOALS)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    return analysed(planted(TRUTH), tmp_path_factory.mktemp("reference") / "planted-small")


def beside(reference: Path, folder: Path, runs: pd.DataFrame, curves: pd.DataFrame) -> Comparison:
    """Tables made from the reference's, as of another day."""
    runs = runs.assign(finished_at="2026-02-02T00:00:00")
    return compare(analysed(Tables(folder, runs, curves), folder / "planted-small"), reference)


def tables_of(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.read_parquet(folder / "runs.parquet"), pd.read_parquet(folder / "curves.parquet")


def part(curves: pd.DataFrame, share: float, seed: int = 0) -> pd.DataFrame:
    """As on another processor: all differ in the last digits, and a share part, each by its own few per cent of speed,
    from some step on."""
    rng = np.random.default_rng(seed)
    parts = []
    for _, rows in curves.groupby("run_id", sort=False):
        rows = rows.copy()
        rows["loss"] *= 1 + 1e-7
        if rng.random() < share:
            late = rows["step"] > np.quantile(rows["step"], 0.3)
            change = np.exp(0.05 * rng.standard_normal(late.sum()))
            rows.loc[late, "loss"] *= change
            rows.loc[late, "metric"] *= np.exp(0.05 * rng.standard_normal())
            rows.loc[late, ["trace_cov", "grad_sq_norm"]] *= change[:, None]
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def test_equal_runs_reproduce_it_bit_for_bit(reference, tmp_path):
    found = beside(reference, tmp_path, *tables_of(reference))
    assert found.sentence == "planted-small reproduces the reference, bit for bit."
    assert (found.equal, found.common, found.wanted, found.taken) == (72, 72, 72, 0)
    assert all(goal.steps_below == goal.steps_above == Estimate(1, 1, 1) for goal in found.goals)


def test_a_run_cut_short_is_equal_as_far_as_it_goes(reference, tmp_path):
    runs, curves = tables_of(reference)
    ends = curves.groupby("run_id")["step"].transform("max")
    assert beside(reference, tmp_path, runs, curves[curves["step"] < ends]).equal == 72


@pytest.mark.parametrize("seed", range(3))
def test_runs_that_part_by_rounding_reproduce_it(reference, tmp_path, seed):
    runs, curves = tables_of(reference)
    found = beside(reference, tmp_path, runs, part(curves, 0.33, seed))
    assert found.sentence.startswith("planted-small reproduces the reference") and not found.differs
    assert found.equal == 0 and 36 < found.rounded < 66 and found.parted_at > 1
    assert found.measured.low == pytest.approx(1) == found.measured.high


def test_a_learning_rate_scaled_by_a_half_more_does_not(reference, tmp_path):
    """B_crit does not see it; steps do, as below the best learning rate they fall and above it they rise."""
    shifted = planted(replace(TRUTH, lr_steps=tuple(j + math.log2(1.5) for j in TRUTH.lr_steps)))  # type: ignore[arg-type]
    runs = tables_of(reference)[0]
    found = beside(reference, tmp_path, shifted.runs.assign(lr=runs["lr"]), shifted.curves)
    assert "differs from the reference at goals 0.5, 0.2: steps at small learning rates" in found.sentence
    assert all(goal.steps_below.high < 0.91 and goal.steps_above.low > 1 for goal in found.goals)
    assert all(goal.own.b_crit.low < goal.reference.b_crit.value < goal.own.b_crit.high for goal in found.goals)


def test_a_learning_rate_far_too_small_is_seen_in_the_runs_that_never_arrive(reference, tmp_path):
    runs, curves = tables_of(reference)
    worse = curves.assign(metric=curves["metric"].clip(lower=0.6))
    easy = worse.assign(
        metric=worse["metric"].where(worse["run_id"].isin(runs.loc[runs["lr"] < 0.01, "run_id"]), curves["metric"])
    )
    found = beside(reference, tmp_path, runs, easy)
    assert "differs from the reference" in found.sentence


BIASED: dict[str, Callable[[pd.DataFrame, pd.Series], pd.DataFrame]] = {
    "a fifth more |G|²": lambda curves, size: curves.assign(grad_sq_norm=1.2 * curves["grad_sq_norm"]),
    "the plain |Ḡ|²": lambda curves, size: curves.assign(
        grad_sq_norm=curves["grad_sq_norm"] + curves["trace_cov"] / size
    ),
    "2% more tr Σ": lambda curves, size: curves.assign(trace_cov=1.02 * curves["trace_cov"]),
}


@pytest.mark.parametrize("share", [0.0, 0.33])
@pytest.mark.parametrize("bias", BIASED)
def test_a_biased_estimator_is_found_in_runs_that_trained_alike(reference, tmp_path, bias, share):
    runs, curves = tables_of(reference)
    size = curves["run_id"].map(runs.set_index("run_id")["batch_size"])
    found = beside(reference, tmp_path, runs, BIASED[bias](part(curves, share), size))
    assert "runs that trained alike measured" in found.sentence and found.differs


def test_a_biased_estimator_is_found_where_no_run_is_like_its_twin(reference, tmp_path):
    runs, curves = tables_of(reference)
    found = beside(reference, tmp_path, runs, part(curves, 1.0).assign(trace_cov=lambda rows: 1.5 * rows["trace_cov"]))
    assert math.isnan(found.measured.value) and found.sentence.endswith("at goals 0.5, 0.2: B_simple.")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parameters": 9}, "because parameters is 9 here and 7 there"),
        ({"data": "other"}, "because data is other here and none there"),
        ({"record_version": 2}, "because record_version is 2 here and 1 there"),
        (
            {"config": json.dumps({"task": {"name": "digits", "width": 9}})},
            "because task.width is 9 here and null there",
        ),
    ],
)
def test_another_experiment_is_not_comparable(reference, tmp_path, changed, said):
    runs, curves = tables_of(reference)
    config = json.loads(runs["config"].iloc[0]) | json.loads(changed.get("config", "{}"))
    found = beside(reference, tmp_path, runs.assign(**changed | {"config": json.dumps(config)}), curves)
    assert said in found.sentence and not found.differs
    assert format_comparison(found, "image") == found.sentence


def test_half_the_runs_are_too_few_unless_they_differ(reference, tmp_path):
    runs, curves = tables_of(reference)
    half = runs[runs["seed"] == 0]
    found = beside(reference, tmp_path, half, curves[curves["run_id"].isin(half["run_id"])])
    assert found.sentence.endswith("not comparable with the reference yet, because it has fewer runs: 24 of its 72.")
    slow = curves.assign(step=(1.5 * curves["step"]).astype(int))
    found = beside(reference, tmp_path / "slow", half, slow[slow["run_id"].isin(half["run_id"])])
    assert "differs from the reference at goals" in found.sentence


def test_runs_taken_over_are_no_evidence(reference):
    found = compare(reference, reference)
    assert found.taken == 72 and "goes on from the reference: 72 runs taken over, 0 new." in found.sentence


def test_what_is_printed_fits_a_terminal_and_ends_with_the_answer(reference, tmp_path):
    runs, curves = tables_of(reference)
    found = beside(reference, tmp_path, runs, part(curves, 0.33))
    lines = format_comparison(found, "image").splitlines()
    assert max(map(len, lines)) <= 120 and lines[-1] == found.sentence
    assert lines[0] == "Beside the reference: 72 of its 72 runs made here." and lines[1].startswith(
        "0 of them are equal"
    )


def test_a_folder_that_is_not_analysed_is_named(reference, tmp_path):
    save(Tables(tmp_path, *tables_of(reference)), tmp_path / "planted-small")
    with pytest.raises(UserError, match=r"no .*fits\.csv"):
        compare(tmp_path / "planted-small", reference)


def test_bounds_count_where_they_tell():
    """Own and reference: (steps, reached, status); a budget of 1,000 steps."""
    cases = [
        ((10, True, "reached"), (20, True, "reached"), math.log(0.5)),
        ((10, True, "reached"), (40, False, "not_reached"), math.log(0.25)),
        ((50, True, "reached"), (40, False, "not_reached"), math.nan),
        ((50, True, "reached"), (4, False, "diverged"), math.log(0.05)),
        ((4, False, "diverged"), (50, True, "reached"), math.log(20)),
        ((4, False, "diverged"), (50, False, "not_reached"), math.nan),
    ]
    keys = ["steps", "reached", "status"]
    rows = pd.DataFrame(
        [
            {**dict(zip(keys, a, strict=True)), **{f"{k}_reference": v for k, v in zip(keys, b, strict=True)}}
            for a, b, _ in cases
        ]
    )
    rows["config"] = rows["config_reference"] = '{"max_steps": 1000}'
    np.testing.assert_allclose(log_ratios(rows), [expected for *_, expected in cases])


def test_the_intervals_cover():
    """Of a median and of a ratio of sums, by twenty pairs, in 400 draws each: 95% within three errors."""
    rng = np.random.default_rng(0)
    hits = np.zeros(2)
    for _ in range(400):
        median = median_ratio(rng.standard_cauchy(20) * 0.2 + math.log(1.2))
        theirs = np.stack([rng.lognormal(0, 1, 20), rng.lognormal(0, 0.3, 20)], axis=1)
        theirs[:, 1] = theirs[:, 0] / 50 * rng.lognormal(0, 0.1, 20)
        ours = theirs * [1.2, 1] * rng.lognormal(0, 0.1, (20, 2))
        noise = noise_ratio(ours, theirs)
        hits += [median.low <= 1.2 <= median.high, noise.low <= 1.2 <= noise.high]
    assert (np.abs(hits / 400 - 0.95) < 0.033).all(), hits / 400


def test_sums_stop_at_the_step_and_leave_gaps_out():
    curves = pd.DataFrame(
        {
            "run_id": ["a"] * 4,
            "step": [0, 1, 4, 9],
            "trace_cov": [1.0, np.nan, 3.0, 5.0],
            "grad_sq_norm": [2.0, np.nan, 1.0, 7.0],
            "noise_examples": [2, 0, 10, 1],
        }
    )
    sums = NoiseSums(curves)
    runs = pd.Series(["a", "a", "a"])
    np.testing.assert_array_equal(sums.up_to(runs, pd.Series([0.5, 4.0, 8.9])), [[2, 4], [32, 14], [32, 14]])
    np.testing.assert_array_equal(sums.up_to(runs[:1]), [[37, 21]])
