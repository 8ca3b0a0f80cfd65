"""Whole sweeps, as a user starts them: interrupted, killed, repeated, planned."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

from experiments.config import RECORD_VERSION, load
from experiments.errors import UserError
from experiments.sweep.driver import Sweep, in_order, shares
from experiments.sweep.search import Point
from experiments.tables.collecting import NOT_SCIENCE

ROOT = Path(__file__).parents[3]
SMALL = ["task=digits", "preset=smoke", "sweep.batch_sizes=[16,64,256]", "sweep.widen=1", "sweep.seeds=2"]
ENVIRONMENT = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def command(folder: Path, *more: str) -> list[str]:
    where = [f"results={folder}/results", f"runs={folder}/runs"]
    return [sys.executable, "-m", "experiments.cli.train", *SMALL, *where, *more]


def sweep(folder: Path, *more: str) -> str:
    done = subprocess.run(
        command(folder, *more), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tables(folder: Path) -> list[pd.DataFrame]:
    where = folder / "results" / "digits-smoke"
    found = [pd.read_parquet(where / f"{name}.parquet") for name in ("runs", "curves")]
    return [table.drop(columns=[c for c in NOT_SCIENCE if c in table]) for table in found]


def same(first: Path, second: Path) -> None:
    for a, b in zip(tables(first), tables(second), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)
    for name in ("fits.csv", "crossings.csv"):
        ours, theirs = (folder / "results" / "digits-smoke" / name for folder in (first, second))
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    sweep(folder)
    return folder


@pytest.mark.slow
def test_a_second_time_trains_nothing(whole):
    before = {path: path.stat().st_mtime_ns for path in (whole / "runs").rglob("summary.json")}
    assert len(before) == len(tables(whole)[0]) > 9
    out = sweep(whole)
    assert "0 to make now" in out and "Verdict" in out
    assert {path: path.stat().st_mtime_ns for path in (whole / "runs").rglob("summary.json")} == before


@pytest.mark.slow
def test_committed_tables_are_enough(whole, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "digits-smoke").symlink_to(whole / "results" / "digits-smoke")
    assert "0 to make now" in sweep(tmp_path)
    assert not list((tmp_path / "runs").rglob("summary.json"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_kills_change_no_row(whole, tmp_path):
    """Half of them of everything at once, half of the driver alone, each while a run trains."""
    draw = random.Random(1)
    runs, cut_short = tmp_path / "runs", 0
    for i in range(10):
        started = set(runs.rglob("config.json"))
        process = subprocess.Popen(
            command(tmp_path, "checkpoint_seconds=0.05"),
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None and set(runs.rglob("config.json")) == started:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 1))
        with suppress(ProcessLookupError):  # it may just have ended
            os.killpg(process.pid, signal.SIGKILL) if i % 2 else os.kill(process.pid, signal.SIGKILL)
        process.wait()
        cut_short += any(not (path.parent / "summary.json").exists() for path in runs.rglob("config.json"))
    assert cut_short >= 5, "the kills found no run under way"
    sweep(tmp_path)
    same(whole, tmp_path)


@pytest.mark.slow
def test_a_killed_worker_costs_no_run(whole, tmp_path):
    process = subprocess.Popen(command(tmp_path), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    killed = False
    while process.poll() is None and not killed:
        time.sleep(0.2)
        if list((tmp_path / "runs").rglob("config.json")):
            workers = subprocess.run(
                ["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True
            )
            os.kill(int(workers.stdout.split()[0]), signal.SIGKILL)
            killed = True
    process.communicate(timeout=280)
    assert killed and process.returncode == 0
    same(whole, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "how"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)], ids=["ctrl-c", "kill"]
)
def test_ctrl_c_or_kill_stops_at_once_and_says_how_to_go_on(send, how, tmp_path):
    process = subprocess.Popen(
        command(tmp_path, "sweep.seeds=20"),  # still going when it is told to stop
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list((tmp_path / "runs").rglob("config.json")) and process.poll() is None:
        time.sleep(0.1)
    send(process.pid, how)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "goes on from here" in errors and "Traceback" not in errors


@pytest.mark.slow
def test_dry_lists_and_trains_nothing(tmp_path):
    out = sweep(tmp_path, "dry=true")
    assert "9 runs, at most" in out and out.count("\n") >= 11
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("config.json"))


def test_another_experiment_in_the_same_folder_is_refused_before_it_trains(tmp_path):
    suite = load([*SMALL, f"results={tmp_path}", f"runs={tmp_path}/runs"])
    suite.tables.mkdir()
    config = asdict(suite.point(16, 0.1, 0))
    run = dict(run_id="digits-0", status="reached", config=json.dumps(config), record_version=RECORD_VERSION)
    runs = pd.DataFrame([run])
    runs.to_parquet(suite.tables / "runs.parquet")
    pd.DataFrame([dict(run_id="digits-0", step=0)]).to_parquet(suite.tables / "curves.parquet")
    Sweep(suite)
    Sweep(load([*SMALL, f"results={tmp_path}", "sweep.seeds=3", "measure.probe_share=0.1"]))
    with pytest.raises(UserError, match=r"task\.\w+ is .* and .*; choose another preset or results="):
        Sweep(load([*SMALL, f"results={tmp_path}", "task.channels=[3,4]"]))


@pytest.mark.parametrize("wrong", ["task.chanels=[3,4]", "lr=-1", "micro_batch=48"])
def test_mistakes_are_one_message_without_traceback(wrong, tmp_path):
    done = subprocess.run(
        command(tmp_path, wrong), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and done.stdout == ""
    assert wrong.split("=")[0] in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("hydra.launcher.workers=-1", "a whole number from 1"),
        ("hydra.launcher.workers=foo", "a whole number from 1"),
        ("hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs: no such key; allowed: workers"),
        ("hydra/launcher=basic", "cluster=local, slurm or ray"),
        ("hydra.mode=FOO", "expected one of [RUN, MULTIRUN]"),
    ],
)
def test_mistakes_in_hydras_own_options_say_what_is_allowed(wrong, said, tmp_path):
    done = subprocess.run(
        command(tmp_path, wrong), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_longest_run_goes_first_but_the_cheapest_where_a_sweep_takes_days():
    one, two, three = (Point(size, 0.1, 0) for size in (1, 2, 3))
    for hours, order in ((0.1, [two, three, one]), (10.0, [one, three, two])):
        costs = {one: 900 * hours, two: 1800 * hours, three: 1100 * hours}
        assert in_order([one, two, three], costs) == order


def test_short_runs_share_a_job_and_long_ones_do_not():
    points = [Point(1, 0.1, seed) for seed in range(6)]
    costs = dict(zip(points, [100.0, 40.0, 3.0, 3.0, 3.0, 1.0], strict=True))
    assert shares(points, costs, 8.0) == [points[:1], points[1:2], points[2:4], points[4:]]
    assert [point for share in shares(points, costs, 50.0) for point in share] == points
