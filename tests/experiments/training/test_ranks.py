"""Two ranks share one run: the same curve as one process up to rounding, one record, resumable."""

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from drive import ENVIRONMENT, ROOT

from experiments.config import SuiteConfig, load
from experiments.errors import UserError
from experiments.launch.job import train_one
from experiments.sweep.driver import run_sweep
from experiments.tasks import TASKS
from experiments.training.loop import Trainer
from experiments.training.ranks import Ranks, joined, own_device, rank_count
from experiments.training.record import RunRecord

CPU = torch.device("cpu")
# Three micro-batches on two ranks: one has two of them.
RUN = ["task=digits", "preset=smoke", "batch_size=48", "micro_batch=16", "lr=0.2", "sweep.steps_budget=10"]
RUN += ["stop_metric=null", "sweep.batch_sizes=[16,48]", "optimizer.clip=1.0"]


def suite_in(folder: Path, *more: str) -> SuiteConfig:
    return load([*RUN, f"results={folder}/results", f"runs={folder}/runs", *more])


def point(suite: SuiteConfig):
    return suite.point(suite.run.batch_size, suite.run.lr, suite.run.seed)


def record(suite: SuiteConfig) -> RunRecord:
    return RunRecord(suite.records / point(suite).run_id)


def curve(suite: SuiteConfig) -> pd.DataFrame:
    found = record(suite).read()
    assert found is not None
    return found[2].drop(columns="seconds")


def share(rank: int, world: int, port: int, folder: Path, die_at: int) -> None:
    """One rank, as torchrun would start it; it dies at a step as by kill -9."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    train_step = Trainer.train_step

    def dying(self: Trainer) -> None:
        if self.step == die_at:
            os._exit(9)
        train_step(self)

    Trainer.train_step = dying
    suite = suite_in(folder, "checkpoint_seconds=0.0001")
    with joined(CPU) as ranks:
        train_one(suite, point(suite), record(suite), ranks)


def on_ranks(world: int, folder: Path, die_at: int = -1) -> list[int | None]:
    """Their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.launch.job"])
    ranks = [context.Process(target=share, args=(rank, world, port, folder, die_at)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    return [process.exitcode for process in ranks]


@pytest.mark.slow
def test_two_ranks_make_the_run_of_one_and_resume_it_bit_for_bit(tmp_path):
    one, two, cut = (suite_in(tmp_path / name) for name in ("one", "two", "cut"))
    train_one(one, point(one), record(one))
    assert on_ranks(2, tmp_path / "two") == [0, 0]
    alone, shared = curve(one), curve(two)
    assert record(one).run_id == record(two).run_id, "an id is the science, not the ranks"
    assert sorted(os.listdir(record(two).folder)) == sorted(os.listdir(record(one).folder))
    assert alone[["step", "examples", "noise_examples", "noise_steps"]].equals(
        shared[["step", "examples", "noise_examples", "noise_steps"]]
    )
    assert len(alone) > 15 and (alone["noise_steps"] > 0).all()
    for column in ("loss", "metric", "grad_sq_norm", "trace_cov", "b_simple"):
        np.testing.assert_allclose(shared[column], alone[column], rtol=2e-3, atol=1e-6, err_msg=column)

    assert on_ranks(2, tmp_path / "cut", die_at=12) == [9, 9]
    assert record(cut).read() is None and (record(cut).folder / "checkpoint.pt").exists()
    assert on_ranks(2, tmp_path / "cut") == [0, 0]
    pd.testing.assert_frame_equal(curve(cut), shared, check_exact=True)


@pytest.mark.slow
def test_torchrun_starts_the_ranks_and_a_finished_run_is_not_made_again(tmp_path):
    where = [f"results={tmp_path}/results", f"runs={tmp_path}/runs"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "experiments.cli.train", "hydra.mode=RUN", *RUN, *where]
    environment = ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "lo"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert made.returncode == 0, made.stderr
    suite = suite_in(tmp_path)
    found = record(suite).read()
    assert found is not None and found[1]["device"].endswith(" x 2")
    before = (record(suite).folder / "summary.json").stat().st_mtime_ns
    train_one(suite, point(suite), record(suite))
    assert (record(suite).folder / "summary.json").stat().st_mtime_ns == before


def test_what_ranks_cannot_share_is_refused():
    run = point(load(RUN))
    task = TASKS["digits"][1](run.task, 0, CPU)
    Ranks(0, 3).check(run, task)
    with pytest.raises(UserError, match=r"batch_size=48 has 3 micro-batches \(micro_batch=16\) for 4 ranks; allowed"):
        Trainer(run, task, CPU, Ranks(0, 4))


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined(CPU) as ranks:
        assert ranks == Ranks(0, 1) and ranks.first and ranks.first_says(lambda: 3) == 3
    assert rank_count() == 1 and own_device(torch.device("cuda")) == torch.device("cuda")


def test_under_torchrun_each_rank_has_its_own_gpu_and_a_sweep_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert own_device(torch.device("cuda")) == torch.device("cuda:2") and own_device(CPU) == CPU
    with pytest.raises(UserError, match=r"4 ranks share one run.* hydra\.mode=RUN"):
        run_sweep(suite_in(tmp_path), lambda shares: None)
