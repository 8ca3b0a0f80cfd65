"""Spans between cuts of the learning rate: found in a curve, and each fitted by itself."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from synthetic_tables import Planted, plant, save

from experiments.analysis.spans import number, span, split, steps_to
from experiments.analysis.sweep_fit import analyse
from experiments.config import RunConfig, load
from experiments.single_run.variations import fitted
from experiments.tasks import TASKS
from experiments.training.learning_rate_cuts import beginnings
from experiments.training.loop import Trainer, evaluation_steps
from experiments.training.record import RunRecord

CUT = 0.4
TRUTHS = Planted(start=20, slope=0.5), Planted(start=200, slope=1.0)


@pytest.mark.parametrize(
    ("metric", "cuts", "patience", "expected"),
    [
        ([1, 0.6, 0.5, 0.4, 0.2], [0.5], 1, [0, 2]),
        ([1, 0.6, 0.5, 0.4, 0.2], [0.5], 3, [0, 3]),  # (0.6 + 0.5 + 0.4)/3
        ([1, 0.2, 0.9, 0.9, 0.9], [0.5], 3, [0]),  # one lucky evaluation ends nothing
        ([1, 0.4, 0.3, 0.2, 0.1], [0.5, 0.25], 2, [0, 2, 4]),
        ([1, 0.1, 0.1, 0.1], [0.5, 0.3, 0.2], 1, [0, 1, 2, 3]),  # one cut at a time
        ([1, np.nan, 0.1, 0.1], [0.5], 2, [0, 3]),
        ([], [0.5], 2, [0]),
    ],
)
def test_a_span_ends_where_the_mean_of_its_last_evaluations_passes_its_cut(metric, cuts, patience, expected):
    assert beginnings(metric, "min", cuts, patience) == expected
    assert beginnings([-value for value in metric], "max", [-cut for cut in cuts], patience) == expected
    for end in range(1, len(metric)):
        so_far = [at for at in expected if at <= end]
        assert beginnings(metric[: end + 1], "min", cuts, patience) == so_far, "the future changes nothing"


def test_a_goal_belongs_to_the_span_that_ends_at_it():
    cuts = [0.487, 0.312]
    assert [number(goal, "min", cuts) for goal in (0.6, 0.487, 0.4, 0.312, 0.229)] == [0, 0, 1, 1, 2]
    assert [number(goal, "max", [1.0, 2.0]) for goal in (0.5, 1.0, 1.5, 2.0, 3.0)] == [0, 0, 1, 1, 2]


def two_spans():
    """The second span has another noise scale than the first, and a metric from the cut down."""
    first, second = (plant(truth) for truth in TRUTHS)
    curves = []
    ends = {str(run): rows for run, rows in second.curves.groupby("run_id")}
    for run, rows in first.curves.groupby("run_id", sort=False):
        begins = beginnings(rows["metric"].to_list(), "min", [CUT], 3)
        if len(begins) == 2:
            after = ends[str(run)].iloc[1:].copy()
            rows = rows.iloc[: begins[1] + 1]
            after["metric"] *= CUT
            after[["step", "examples"]] += rows[["step", "examples"]].iloc[-1]
            rows = pd.concat([rows, after])
        curves.append(rows)
    config = json.dumps({"measure": {"probe_examples": 64}, "lr_cuts": [CUT], "stop_patience": 3})
    return replace(first, runs=first.runs.assign(config=config), curves=pd.concat(curves, ignore_index=True))


def test_each_span_is_fitted_by_itself(tmp_path):
    tables = two_spans()
    fits = analyse(save(tables, tmp_path / "imagenet-small"), [CUT, 0.5 * CUT, 0.2 * CUT])
    for fit, truth, goal in zip(fits, (TRUTHS[0], TRUTHS[1], TRUTHS[1]), (CUT, 0.5, 0.2), strict=True):
        assert fit.b_crit.value == pytest.approx(truth.b_crit(goal), rel=0.1)
        assert fit.s_min.value == pytest.approx(truth.progress(goal), rel=0.1)
        assert fit.b_simple.value == pytest.approx(truth.noise(truth.progress(goal)), rel=0.1)
        assert fit.b_simple_start.value == pytest.approx(truth.start, rel=0.1)
    written = pd.read_csv(tmp_path / "imagenet-small" / "crossings.csv")
    assert written["goal"].unique().tolist() == [0.4, 0.2, 0.08]


def test_the_search_sees_the_steps_that_the_fit_sees():
    tables = two_spans()
    goals = [CUT, 0.2 * CUT]
    run = tables.runs.query("status != 'diverged'")["run_id"].iloc[0]
    curve = tables.curves[tables.curves["run_id"] == run]
    steps, reached = steps_to(curve, "min", goals, [CUT], 3)
    assert reached.all()
    for (part, own), found in zip(split(tables, goals), steps, strict=True):
        rows = part.curves[part.curves["run_id"] == run]
        assert steps_to(rows, "min", own, None, 3)[0] == [found]


def test_a_run_that_never_got_into_a_span_is_a_bound_and_not_a_start():
    curve = plant().curves.query("run_id == 'planted-0000'").iloc[:6]
    steps, reached = steps_to(curve, "min", [0.01], [0.02], 3)
    assert steps.tolist() == [1.0] and not reached.any()
    assert len(span(curve, 1, "min", [0.02], 3)) == 1


def test_measurements_before_a_cut_are_not_the_spans():
    tables = two_spans()
    run = tables.runs["run_id"].iloc[0]
    curve = tables.curves[tables.curves["run_id"] == run]
    rows = span(curve, 1, "min", [CUT], 3)
    assert rows["step"].iloc[0] == rows["examples"].iloc[0] == rows["noise_examples"].iloc[0] == 0
    assert (rows["noise_examples"].iloc[1:] > 0).all()


def test_without_cuts_nothing_is_split():
    tables = plant()
    ((part, goals),) = split(tables, [0.3, 0.1])
    assert part is tables and goals == [0.3, 0.1]


def cut_run() -> RunConfig:
    run = load(["task=digits", "preset=smoke", "batch_size=64", "lr=0.2", "lr_cuts=[0.5,0.2]"]).run
    return replace(run, max_steps=400, stop_metric=None)


def trained(run: RunConfig, record: RunRecord, at=lambda trainer: None) -> Trainer:
    cpu = torch.device("cpu")
    trainer = Trainer(run, TASKS["digits"][1](run.task, run.seed, cpu), cpu)
    record.start(run)
    trainer.run(record, 0.0, lambda: at(trainer))
    return trainer


def test_a_run_cuts_its_learning_rate_by_ten_and_looks_more_often_after_it(tmp_path):
    rates = []
    found = trained(cut_run(), RunRecord(tmp_path), lambda t: rates.append(t.optimizer.param_groups[0]["lr"]))
    metric = [row["metric"] for row in found.rows]
    begins = beginnings(metric, "min", [0.5, 0.2], 3)
    assert len(begins) == 3 and found.begins == begins
    expected = [0.2 * 0.1 ** sum(i >= begin for begin in begins[1:]) for i in range(len(rates))]
    assert rates == pytest.approx(expected)
    step = [row["step"] for row in found.rows]
    for begin in begins[1:]:
        assert [at - step[begin] for at in step[begin + 1 : begin + 4]] == [1, 2, 3]
    assert step[: begins[1] + 1] == evaluation_steps(6, 400)[: begins[1] + 1] and step[-1] == 400


def test_a_run_killed_after_a_cut_goes_on_at_the_lower_rate_bit_for_bit(tmp_path):
    class Killed(BaseException):
        pass

    def kill(trainer: Trainer) -> None:
        if len(trainer.begins) == 2 and trainer.rows[trainer.begins[1]]["step"] + 9 < trainer.step:
            raise Killed

    whole = trained(cut_run(), RunRecord(tmp_path / "whole"))
    with pytest.raises(Killed):
        trained(cut_run(), RunRecord(tmp_path / "cut"), kill)
    resumed = trained(cut_run(), RunRecord(tmp_path / "cut"))
    assert torch.equal(resumed.flat.vector, whole.flat.vector)
    assert [row["metric"] for row in resumed.rows] == [row["metric"] for row in whole.rows]


def test_a_sweep_of_spans_from_end_to_end(tmp_path):
    small = [
        "task=quadratic",
        "preset=smoke",
        "task.dim=1000",
        "measure.curvature=false",
        "sweep=fixed",
        "lr_cuts=[0.3]",
    ]
    where = [f"results={tmp_path}/results", f"runs={tmp_path}/runs"]
    suite = load([*small, *where, "sweep.batch_sizes=[4,16,64]", "sweep.steps_budget=300"])
    fits = fitted(suite)
    assert fits["goal"].tolist() == [0.3, 0.1] and (fits["censored"] == 0).all()
    runs, curves = (pd.read_parquet(suite.tables / f"{name}.parquet") for name in ("runs", "curves"))
    found = pd.read_csv(suite.tables / "crossings.csv").set_index(["goal", "batch_size"])
    for run in runs.itertuples():
        curve = curves[curves["run_id"] == run.run_id]
        begins = beginnings(curve["metric"].to_list(), "min", [0.3], suite.run.stop_patience)
        assert len(begins) == 2
        left = curve["step"].iloc[-1] - curve["step"].iloc[begins[1]]
        assert 0 < found.loc[(0.1, run.batch_size), "steps"] <= left < curve["step"].iloc[-1]
