"""The whole analysis against tables in which the truth is planted, and its rules one by one."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from synthetic_tables import Planted, plant, save

from experiments.analysis.goal_fit import estimate, fits_frame
from experiments.analysis.goals import choose_goals
from experiments.analysis.learning_rate_choice import grids
from experiments.analysis.noise_along_run import averaged
from experiments.analysis.noise_at_goal import at_start, at_steps, hessian_curve, simple_curve
from experiments.analysis.sweep_fit import analyse, format_table
from experiments.analysis.verdict import judge, judge_sweep, ratio, tally
from experiments.cli.analyse import main
from experiments.errors import UserError
from experiments.tables.reading import read_tables, same_experiment
from noisescale.averaging import Ratio
from noisescale.formatting import number, with_interval
from noisescale.pareto.fit import Estimate


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return analyse(save(plant(Planted()), tmp_path_factory.mktemp("exact")), [0.5, 0.2, 0.1, 0.07])


def test_exact_curves_give_back_the_planted_values(exact):
    truth = Planted()
    for fit in exact:
        s = truth.progress(fit.goal)
        assert fit.b_crit.value == pytest.approx(truth.b_crit(fit.goal), rel=0.01)
        assert fit.s_min.value == pytest.approx(s, rel=0.01)
        assert fit.e_min.value == pytest.approx(s * truth.b_crit(fit.goal), rel=0.01)
        assert fit.b_simple_avg.value == pytest.approx(truth.b_crit(fit.goal), rel=0.03)
        assert fit.b_simple.value == pytest.approx(truth.noise(s), rel=0.05)
        assert fit.b_simple_start.value == pytest.approx(truth.start, rel=0.02)
        assert math.isnan(fit.b_noise.value) and math.isnan(fit.b_noise_avg.value)
        assert fit.ratio.value == pytest.approx(1, abs=0.03)
        assert (fit.verdict, fit.remark, fit.censored) == ("agree", "", 0)


def test_noisy_curves_give_intervals_that_hold_the_truth(tmp_path):
    truth = Planted(scatter=0.05, metric_noise=0.03, norm_noise=1.0, slope=1.0)
    fits = analyse(save(plant(truth, seed=1), tmp_path), [0.2, 0.1, 0.07])
    for fit in fits:
        known = truth.b_crit(fit.goal)
        for found in (fit.b_crit, fit.b_crit_boot):
            assert found.low / 1.1 < known < found.high * 1.1
            assert found.high / found.low < 2
        assert 0.8 < fit.b_simple_avg.value / known < 1.2
        assert fit.b_simple_avg.low < fit.b_simple_avg.value < fit.b_simple_avg.high


def test_a_rising_metric_gives_the_same_fits(exact, tmp_path):
    rising = analyse(save(plant(Planted(), direction="max"), tmp_path), [1 - fit.goal for fit in exact])
    for up, down in zip(rising, exact, strict=True):
        assert up.b_crit.value == pytest.approx(down.b_crit.value, rel=1e-6)
        assert up.b_simple.value == pytest.approx(down.b_simple.value, rel=1e-6)


def test_the_same_tables_give_the_same_bytes_in_any_order(tmp_path):
    tables = plant(Planted(scatter=0.1, norm_noise=1.0, seeds=2))
    first = save(tables, tmp_path / "first")
    analyse(first)
    shuffled = type(tables)(
        tables.folder, tables.runs.sample(frac=1, random_state=0), tables.curves.sample(frac=1, random_state=0)
    )
    second = save(shuffled, tmp_path / "second")
    analyse(second)
    for name in ("fits.csv", "crossings.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_tables_hold_what_the_schema_says(exact, tmp_path):
    folder = save(plant(Planted(seeds=1)), tmp_path)
    analyse(folder, [0.2])
    crossings, fits = pd.read_csv(folder / "crossings.csv"), pd.read_csv(folder / "fits.csv")
    assert list(crossings) == ["goal", "batch_size", "lr", "seed", "steps", "examples", "reached", "best"]
    assert (crossings.groupby("batch_size")["best"].sum() == 1).all()
    assert not crossings.loc[crossings["best"], "lr"].isna().any()
    assert {"b_crit", "b_crit_low", "b_crit_high", "b_simple_avg_low", "ratio", "verdict", "remark"} <= set(fits)
    assert list(fits_frame(exact)) == list(fits)


def test_an_unreached_batch_size_stays_in_the_fit_as_a_bound(tmp_path):
    tables = plant(Planted(seeds=2))
    slow = tables.runs.loc[tables.runs["batch_size"] == 1, "run_id"]
    short = tables.curves["run_id"].isin(slow) & (tables.curves["step"] > 100)
    fit = analyse(save(type(tables)(tables.folder, tables.runs, tables.curves[~short]), tmp_path), [0.1])[0]
    assert (fit.batch_sizes, fit.censored) == (5, 1)
    assert fit.remark == "not reached at B = 1"
    some = tables.curves["run_id"].isin(tables.runs.query("batch_size == 16 and seed == 0")["run_id"])
    partly = tables.curves[~short & ~(some & (tables.curves["step"] > 250))]
    assert analyse(save(type(tables)(tables.folder, tables.runs, partly), tmp_path), [0.1])[0].remark == fit.remark
    assert fit.b_crit.value == pytest.approx(Planted().b_crit(0.1), rel=0.05)


def test_a_batch_size_with_fewer_seeds_is_remarked(tmp_path):
    tables = plant(Planted())
    runs = tables.runs
    gone = (runs["batch_size"].isin([4, 64]) & (runs["seed"] > 0)) | ((runs["batch_size"] == 256) & (runs["seed"] > 1))
    fit = analyse(save(type(tables)(tables.folder, runs[~gone], tables.curves), tmp_path), [0.2])[0]
    assert fit.remark == "B = 4, 64: 1 of 3 seeds; B = 256: 2 of 3 seeds"


def test_no_bend_is_said_and_not_judged(tmp_path):
    fit = analyse(save(plant(Planted(batch_sizes=(1024, 2048, 4096, 8192, 16384))), tmp_path), [0.3])[0]
    assert (fit.b_crit_status, fit.verdict) == ("not_determined", "not determined")
    assert fit.remark.startswith("not determined: ")
    assert math.isnan(fit.ratio.value)


def test_a_best_learning_rate_on_the_edge_is_remarked(tmp_path):
    fit = analyse(save(plant(Planted(lr_steps=(0, 1, 2))), tmp_path), [0.1])[0]
    assert fit.design == "best learning rate on the edge of its grid at B = 1, 4, 16, 64, 256, 1,024"


def test_users_errors_have_one_line(tmp_path, capsys):
    with pytest.raises(UserError, match=r"no .*runs\.parquet; run `make sweep`"):
        analyse(tmp_path)
    mixed = plant(Planted(seeds=1, batch_sizes=(1, 4)))
    mixed.runs.loc[0, "optimizer"] = "adam"
    with pytest.raises(UserError, match="optimizer is adam and sgd"):
        analyse(save(mixed, tmp_path))
    few = save(plant(Planted(seeds=1, batch_sizes=(1, 4))), tmp_path / "few")
    with pytest.raises(UserError, match="no goal was reached at enough batch sizes"):
        analyse(few)
    with pytest.raises(UserError, match=r"error 2, 3 is already met at step 0; choose harder"):
        analyse(few, [2.0, 3.0])
    assert main([str(few)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [fit.goal for fit in analyse(few, [2.0, 0.5])] == [0.5]
    assert "error 2 is already met at step 0, and left out" in capsys.readouterr().err


def with_configs(tables, change):
    """The planted tables with configs of their own; `change(run)` is the experiment's part of one."""
    configs = []
    for run in tables.runs.itertuples():
        point = {"batch_size": run.batch_size, "lr": run.lr, "seed": run.seed, "max_steps": 10 * run.batch_size}
        configs.append(json.dumps({**point, "measure": {"probe_examples": 64 + run.seed}, **change(run)}))
    return type(tables)(tables.folder, tables.runs.assign(config=configs), tables.curves)


def test_two_experiments_do_not_mix_in_one_folder(tmp_path):
    tables = plant(Planted(seeds=2, batch_sizes=(1, 4)))
    one = with_configs(tables, lambda run: {"optimizer": {"name": "sgd", **({"clip": None} if run.seed else {})}})
    assert len(read_tables(save(one, tmp_path / "one")).runs) == len(one.runs)
    two = with_configs(tables, lambda run: {"task": {"widths": [3, 4 + run.seed]}})
    with pytest.raises(UserError, match=r"task\.widths is \[3, 4\] and \[3, 5\] .*; choose another preset or results="):
        read_tables(save(two, tmp_path / "two"))


def test_a_sweep_is_compared_with_the_runs_that_are_there():
    runs = with_configs(plant(Planted(seeds=1, batch_sizes=(1, 4))), lambda run: {"task": {"widths": [3, 4]}}).runs
    assert same_experiment(runs, {"batch_size": 9, "task": {"widths": (3, 4)}}) is None
    difference = same_experiment(runs, {"batch_size": 9, "task": {"widths": (3, 4), "bias": True}})
    assert difference is not None and difference.startswith("task.bias is true and null")


def test_the_command_prints_a_table_that_fits_a_terminal(tmp_path, capsys):
    folder = save(plant(Planted(scatter=0.05, norm_noise=1.0)), tmp_path)
    assert main([str(folder), "0.3", "0.1"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.split("Wrote")[0].splitlines())) <= 120
    assert re.match(r"goal +S_min \(steps\) +E_min \(images\) +B_crit \(images\)\n", out)
    assert re.search(r"\n0\.1( +[\d,.]+ \[[\d,.]+, [\d,.]+\]){3}\n", out)
    assert "Verdict: agree within a factor of 3 (agree at 2 of 2 goals; at the hardest, 0.1, agree)." in out
    first = (folder / "fits.csv").read_bytes()
    assert main([str(folder)]) == 0
    assert (folder / "fits.csv").read_bytes() == first


def test_goals_are_round_and_within_what_the_runs_pass():
    assert choose_goals(plant(Planted(seeds=1))) == [0.7, 0.5, 0.3, 0.2, 0.1, 0.07]
    rising = choose_goals(plant(Planted(seeds=1), direction="max"))
    assert rising == sorted(rising) and 4 <= len(rising) <= 9


def rows(lr_steps_reached):
    return pd.DataFrame(
        [
            dict(batch_size=8, lr=lr, seed=seed, run_id=f"{lr}-{seed}", steps=steps, reached=reached)
            for lr, runs in lr_steps_reached.items()
            for seed, (steps, reached) in enumerate(runs)
        ]
    )


@pytest.mark.parametrize(
    "runs, diverged, best",
    [
        ({0.1: [(30, True), (30, True)], 0.2: [(20, True), (25, True)], 0.4: [(50, True), (9, True)]}, set(), 0.4),
        ({0.1: [(30, True), (30, True)], 0.2: [(10, True), (100, False)]}, set(), 0.1),
        ({0.1: [(100, False), (100, False)], 0.2: [(90, True), (100, False)]}, set(), 0.2),
        ({0.1: [(100, False), (100, False)], 0.2: [(5, False), (5, False)]}, {"0.2-0", "0.2-1"}, 0.1),
        ({0.1: [(30, True), (30, True)], 0.2: [(10, True)]}, set(), 0.1),
    ],
    ids=["mean of logs", "arriving beats fast", "some arrive", "ended beats diverged", "one seed does not compete"],
)
def test_best_learning_rate(runs, diverged, best):
    (grid,) = grids(rows(runs), diverged)
    assert grid.lrs[grid.best()] == best


def test_an_edge_needs_no_seeds_beyond_it():
    tried = {0.1: [(30, True)], 0.2: [(20, True), (20, True)], 0.4: [(5, False)]}
    assert grids(rows(tried), {"0.4-0"})[0].open_ends == 0
    assert grids(rows({0.2: tried[0.2], 0.4: [(40, True), (40, True)]}), set())[0].open_ends == 1
    assert grids(rows({0.2: tried[0.2]}), set())[0].open_ends == 2


def measured(batch_size, step, trace, square, examples):
    frame = dict(step=step, trace_cov=trace, grad_sq_norm=square, noise_examples=examples, metric=np.nan)
    return simple_curve(pd.DataFrame(frame, dtype=float), batch_size)


def tuned(truth, goal, thin=lambda run, rows: rows):
    """The planted runs at the best learning rates, and their steps to `goal`."""
    tables = plant(truth)
    best = tables.runs.groupby("batch_size")["lr"].transform("median") == tables.runs["lr"]
    by_run = dict(tuple(tables.curves.groupby("run_id")))
    runs = list(tables.runs[best].itertuples())
    curves = [simple_curve(thin(run, by_run[run.run_id]), run.batch_size) for run in runs]
    return curves, [truth.steps(goal, run.batch_size) for run in runs]


STEEP = Planted(slope=3.0)


@pytest.mark.parametrize("goal", [0.5, 0.1])
def test_average_is_by_full_batch_steps(goal):
    """𝓑 grows 15-fold: the mean over steps or examples of any one batch size would be far off."""
    found = averaged(*tuned(STEEP, goal), goal)
    assert found.value == pytest.approx(STEEP.b_crit(goal), abs=STEEP.slope / 2)  # a step has the 𝓑 of its start
    assert found.numerator == pytest.approx(STEEP.progress(goal) * STEEP.b_crit(goal), rel=0.03)
    assert found.denominator == pytest.approx(STEEP.progress(goal), rel=0.03)


def test_rare_probes_of_small_batches_do_not_bend_the_average():
    def rare(run, rows):
        if run.batch_size >= 64:
            return rows
        kept = np.arange(len(rows)) % 12 == (run.batch_size + run.seed) % 12
        return rows.assign(noise_examples=np.where(kept, rows["noise_examples"], 0))

    curves, steps = tuned(STEEP, 0.1, rare)
    assert sum(len(run.at) for run in curves if run.batch_size < 64) < 60
    assert averaged(curves, steps, 0.1).value == pytest.approx(STEEP.b_crit(0.1), rel=0.05)


def test_average_is_a_ratio_of_means_where_the_square_is_often_negative():
    rng = np.random.default_rng(0)

    def noisy(run, rows):
        factor = 1 + 2 * (rng.chisquare(2, len(rows)) / 2 - 1)
        assert (factor < 0).mean() > 0.2
        return rows.assign(grad_sq_norm=rows["grad_sq_norm"] * factor)

    found = averaged(*tuned(STEEP, 0.1, noisy), 0.1)
    assert found.low < STEEP.b_crit(0.1) < found.high and found.high / found.low < 2
    assert found.value == pytest.approx(STEEP.b_crit(0.1), rel=0.15)


def test_average_needs_runs_with_measurements():
    curves, steps = tuned(STEEP, 0.5)
    pair = averaged(curves[:2], steps[:2], 0.5)  # some replicates hold one of them alone
    assert not pair.determined and np.isfinite(pair.value)
    unmeasured = replace(curves[1], **{name: np.empty(0) for name in ("at", "middle", "trace", "square", "examples")})
    half = averaged([curves[0], unmeasured], steps[:2], 0.5)  # and some nothing that was measured
    assert not half.determined and np.isfinite(half.value)
    few = averaged(curves[:4], steps[:4], 0.5)
    assert (few.determined, few.low, few.high) == (False, -math.inf, math.inf) and few.value > 0
    blind, _ = tuned(STEEP, 0.5, lambda run, rows: rows.assign(noise_examples=0))
    assert averaged(blind, steps, 0.5).rows == 0
    assert averaged([], [], 0.5).rows == 0


def test_average_towards_a_rising_metric():
    truth = STEEP
    tables = plant(truth, direction="max")
    best = tables.runs.groupby("batch_size")["lr"].transform("median") == tables.runs["lr"]
    by_run = dict(tuple(tables.curves.groupby("run_id")))
    runs = list(tables.runs[best].itertuples())
    curves = [simple_curve(by_run[run.run_id], run.batch_size, "max") for run in runs]
    found = averaged(curves, [truth.steps(0.3, run.batch_size) for run in runs], 0.7)
    assert found.value == pytest.approx(truth.b_crit(0.3), rel=0.05)


def test_rows_near_the_goal_and_at_the_start():
    runs = [
        measured(64, [0, 10, 100, 110, 1000], [1, 5, 20, 40, 7], [1, 1, 2, 2, 1], [64, 640, 100, 300, 64])
        for _ in range(3)
    ]
    assert at_steps(runs, [105] * 3).value == pytest.approx((100 * 20 + 300 * 40) / (400 * 2))
    assert at_steps(runs, [1900] * 3).value == pytest.approx(7)
    assert at_steps(runs, [2100] * 3).rows == 0
    assert at_start([measured(64, [10], [1], [1], [1])], [0]).rows == 0


def test_curvature_is_measured_at_the_rows_steps_and_needs_no_norms():
    frame = dict(step=[0, 10, 20, 40], trace_hess_cov=[1, 2, 3, np.nan], grad_hess_grad=1.0, noise_examples=0)
    found = hessian_curve(pd.DataFrame(frame).assign(metric=[4.0, 3, 2, 1]), 8, 64)
    assert list(found.at) == list(found.middle) == [0, 10, 20]
    assert (found.examples == 64).all() and list(found.metric) == [4, 3, 2, 1]


def test_runs_of_one_seed_are_one_row_at_the_start():
    runs = [measured(64, [0, 1, 10], [trace, trace + 4, 99], [1, 1, 1], [10, 30, 640]) for trace in (2, 2, 2, 4, 6)]
    found = at_start(runs, [0, 0, 0, 1, 2])
    assert (found.value, found.rows) == (pytest.approx(4 + 3), pytest.approx(3))


def test_an_unclear_square_is_not_determined():
    rng = np.random.default_rng(1)
    runs = [measured(8, [8, 16], rng.normal(1, 0.1, 2), rng.normal(0, 1, 2), [64, 64]) for _ in range(6)]
    found = at_steps(runs, [16] * 6)
    assert not found.determined and math.isinf(found.high)


def test_an_interval_below_zero_stays_there():
    found = Ratio(-3.0, -9.0, 2.0, -3.0, 1.0, 1.0, 0.1, 5.0, True, "")
    assert estimate(found) == Estimate(-3.0, -9.0, 2.0)


def test_ratio_of_estimates():
    assert ratio(Estimate(20, 10, 40), Estimate(10, 10, 10)) == Estimate(2, pytest.approx(1), pytest.approx(4))
    both = ratio(Estimate(1, 0.5, 2), Estimate(1, 0.5, 2))
    assert both.high == pytest.approx(2 ** math.sqrt(2)) and both.low == pytest.approx(2 ** -math.sqrt(2))
    open_end = ratio(Estimate(1, 0.5, math.inf), Estimate(1, 0.5, 2))
    assert open_end.low > 0 and open_end.high == math.inf


@pytest.mark.parametrize(
    "low, high, verdict",
    [
        (0.5, 2, "agree"),
        (0.34, 2.9, "agree"),
        (0.3, 2, "can't tell"),
        (0.2, 0.3, "differ"),
        (3.1, 9, "differ"),
        (0.1, 9, "can't tell"),
        (1, math.inf, "can't tell"),
    ],
)
def test_verdict_of_a_goal(low, high, verdict):
    assert judge(Estimate(1.0, low, high), True) == verdict
    assert judge(Estimate(1.0, low, high), False) == "not determined"


@pytest.mark.parametrize(
    "goals, verdict",
    [
        (["agree"], "agree"),
        (["can't tell", "agree", "agree", "not determined"], "agree"),
        (["can't tell", "agree"], "can't tell"),
        (["agree", "agree", "can't tell"], "can't tell"),
        (["differ", "not determined"], "differ"),
        (["can't tell", "differ", "can't tell"], "differ"),
        (["differ", "agree", "agree", "agree", "agree"], "mixed"),
        (["can't tell", "not determined"], "can't tell"),
        (["not determined"], "not determined"),
        ([], "not determined"),
    ],
)
def test_verdict_of_a_sweep(goals, verdict):
    assert judge_sweep(goals) == verdict


@pytest.mark.parametrize(
    "goals, told",
    [
        (["can't tell", "agree", "agree", "can't tell"], "agree at 2 of 4 goals, can't tell at 2"),
        (["not determined", "differ", "agree"], "agree at 1 of 3 goals, differ at 1, not determined at 1"),
        (["can't tell"], "can't tell at 1 of 1 goals"),
    ],
)
def test_a_tally_leaves_out_no_goal(goals, told):
    assert tally(goals) == told


@pytest.mark.parametrize(
    "estimate, text",
    [
        (Estimate(123.4, 95, 150), "120 [95, 150]"),
        (Estimate(12345, 12000, 12700), "12,300 [12,000, 12,700]"),
        (Estimate(0.01234, 0.012, 0.0127), "0.0123 [0.0120, 0.0127]"),
        (Estimate(5, 0, 9), "5.0 [<9.0]"),
        (Estimate(5, 2, math.inf), "5.0 [>2.0]"),
        (Estimate(5, 0, math.inf), "5.0 [?]"),
        (Estimate(5, -math.inf, math.inf), "5.0 [?]"),
        (Estimate(5, -math.inf, 9), "5.0 [<9.0]"),
        (Estimate(5, -2, 9), "5.0 [-2.0, 9.0]"),
        (Estimate(5, -2, math.inf), "5.0 [>-2.0]"),
        (Estimate(-5, -20, -1), "-5.0 [-20, -1.0]"),
        (Estimate(math.nan, math.nan, math.nan), "–"),
    ],
)
def test_numbers_with_errors(estimate, text):
    assert with_interval(estimate) == text


@pytest.mark.parametrize(
    "value, text",
    [(0, "0"), (-19.04, "-19.0"), (1234567, "1,230,000"), (math.inf, "∞"), (2.4e9, "2.40e9"), (9.996, "10.0")],
)
def test_rounding(value, text):
    assert number(value) == text


def test_the_printed_table_numbers_its_remarks(exact):
    odd = [
        replace(fit, remark=f"odd {i}" if i else "", design="small" if i == 2 else "") for i, fit in enumerate(exact)
    ]
    lines = format_table(odd, "image").splitlines()
    assert {"(1) odd 1", "(2) odd 2; small"} <= set(lines) and lines[3].endswith("(1)")


def test_the_printed_table_fits_a_terminal_whatever_the_size_of_its_numbers(exact):
    wide = Estimate(12_345_678.0, 12_300_000.0, 12_400_000.0)
    changed = dict(s_min=wide, e_min=wide, b_crit=wide, b_simple=wide, b_simple_avg=wide, ratio=Estimate(1, 0.99, 1.01))
    for frames in (None, 4.0):
        lines = format_table([replace(exact[0], **changed)], "observation", frames).splitlines()
        assert max(map(len, lines)) <= 120


def test_a_games_table_gives_frames_beside_observations(exact):
    fit = replace(exact[0], e_min=Estimate(1000.0, 500.0, 2000.0), b_crit=Estimate(300.0, 200.0, 400.0))
    said = format_table([fit], "observation", 4.0)
    assert "E_min (observations)" in said and "E_min (frames)" in said and "1,000 [500, 2,000]" in said
    assert "4,000 [2,000, 8,000]" in said and "1,200 [800, 1,600]" in said
    assert "frames" not in format_table([fit], "observation")
