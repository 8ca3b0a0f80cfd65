"""The same sweep on a real Slurm (of this one machine) and on a real Ray gives the same rows, whatever is killed."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from drive import ENVIRONMENT, ROOT, SMALL, SWEEP, command, same, start, sweep, tables

from experiments.config import load
from experiments.launch.job import train_one
from experiments.training.record import RunRecord

CLUSTER = Path(__file__).parents[2] / "slurm" / "cluster.sh"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    sweep(folder)
    return folder


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[Path]:
    pytest.importorskip("submitit", reason="hydra-submitit-launcher isn't installed: make setup CLUSTER=slurm")
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run([CLUSTER, "start", folder], capture_output=True, text=True, timeout=280)
    if started.returncode == 77:
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    yield Path(started.stdout.strip())
    subprocess.run([CLUSTER, "stop", folder], check=True, timeout=60)


def jobs(folder: Path) -> list[Path]:
    """Their folders; a file beside them is of a job that is about to be submitted."""
    return [place for place in (folder / "runs" / "hydra" / "slurm").glob("[0-9]*") if place.is_dir()]


def wait_for(what, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it doesn't come"
        time.sleep(0.05)


def records(folder: Path, name: str) -> list[Path]:
    return list((folder / "runs" / SWEEP).glob(f"*/{name}"))


def submitted_processes() -> list[int]:
    found = subprocess.run(["pgrep", "-f", "python.* submitit.core._submit"], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split() if "srun" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]]


def test_slurm_gives_the_same_tables_in_few_jobs(local, slurm, tmp_path):
    out = sweep(tmp_path, "cluster=slurm", SLURM_CONF=str(slurm))
    assert "Verdict" in out
    same(local, tmp_path)
    assert 1 <= len(jobs(tmp_path)) < len(tables(tmp_path)[0])


def test_a_killed_driver_leaves_jobs_that_the_next_one_waits_for(local, slurm, tmp_path):
    def node(state: str) -> None:
        change = ["scontrol", "update", "nodename=localhost", f"state={state}", "reason=test"]
        subprocess.run(change, env=ENVIRONMENT | {"SLURM_CONF": str(slurm)}, check=True)

    node("drain")  # so that the jobs are still there when the next driver asks
    try:
        process = start(tmp_path, "cluster=slurm", SLURM_CONF=str(slurm))
        wait_for(lambda: jobs(tmp_path))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        process = start(tmp_path, "cluster=slurm", SLURM_CONF=str(slurm))
        assert process.stdout is not None
        assert any("under way" in line for line in process.stdout)
    finally:
        node("resume")
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0, out
    same(local, tmp_path)


def test_a_killed_job_costs_no_run(local, slurm, tmp_path):
    process = start(tmp_path, "cluster=slurm", SLURM_CONF=str(slurm))
    wait_for(lambda: records(tmp_path, "config.json"))
    for pid in submitted_processes():
        os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0, out
    same(local, tmp_path)


ONE_RUN = ["sweep.batch_sizes=[64]", "sweep.points=1", "sweep.widen=0", "task.dim=50000"]
LONG_RUN = [*ONE_RUN, "task.dim=500000"]


@pytest.mark.parametrize(
    ("ask", "seconds"), [(["scancel", "--signal=USR2"], 3600), (["scontrol", "requeue"], 0.05)], ids=["told", "cut"]
)
def test_a_preempted_job_goes_back_into_the_queue_and_on(slurm, tmp_path, ask, seconds):
    """Told in time (as before its time limit), a run saves itself whatever its checkpoints; cut without a word, it goes
    on from the last. The job stays the same one."""
    environment = ENVIRONMENT | {"SLURM_CONF": str(slurm)}
    process = start(tmp_path, *ONE_RUN, "cluster=slurm", f"checkpoint_seconds={seconds}", **environment)
    wait_for(lambda: records(tmp_path, "config.json" if seconds > 1 else "checkpoint.pt"))
    (job,) = jobs(tmp_path)
    subprocess.run([*ask, job.name], env=environment, check=True)
    show = ["scontrol", "show", "job", job.name]
    wait_for(lambda: "Restarts=1" in subprocess.run(show, env=environment, capture_output=True, text=True).stdout)
    (checkpoint,) = records(tmp_path, "checkpoint.pt")
    assert torch.load(checkpoint, weights_only=True)["step"] > 0
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0, out
    assert jobs(tmp_path) == [job]

    suite = load([*SMALL, *ONE_RUN, f"runs={tmp_path}/truth"])
    (run_id,) = tables(tmp_path)[0]["run_id"]
    run = next(run for lr in [0.5333, 1.067] if (run := suite.point(64, lr, 0)).run_id == run_id)
    record = RunRecord(suite.records / run.run_id)
    torch.set_num_threads(suite.threads)  # as the job has it: sums in the same order
    train_one(suite, run, record)
    truth = record.read()
    assert truth is not None
    ours = tables(tmp_path)[1].drop(columns="run_id")
    pd.testing.assert_frame_equal(ours, truth[2].drop(columns="seconds"), check_exact=True)


def test_a_killed_node_daemon_costs_no_run(local, slurm, tmp_path):
    process = start(tmp_path, "cluster=slurm", SLURM_CONF=str(slurm))
    wait_for(lambda: records(tmp_path, "config.json"))
    os.kill(int((slurm.parent / "slurmd.pid").read_text()), signal.SIGKILL)
    time.sleep(1)
    subprocess.run(["slurmd", "-f", slurm, "-N", "localhost"], check=True)
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0, out
    same(local, tmp_path)


def detach(folder: Path, slurm: Path, *more: str) -> subprocess.CompletedProcess[str]:
    detached = [part.replace(".train", ".detach") for part in command(folder, "cluster=slurm", *more)]
    environment = ENVIRONMENT | {"SLURM_CONF": str(slurm)}
    return subprocess.run(detached, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_a_driver_that_is_a_job_itself(local, slurm, tmp_path):
    """`make sweep DETACH=1`."""
    left = detach(tmp_path, slurm)
    assert left.returncode == 0 and "job " in left.stdout, left.stderr
    wait_for(lambda: (tmp_path / "results" / SWEEP / "fits.csv").exists(), 500)
    same(local, tmp_path)


def test_a_second_driver_is_refused_and_scancel_of_the_first_stops_its_jobs(slurm, tmp_path):
    environment = ENVIRONMENT | {"SLURM_CONF": str(slurm)}

    def queue() -> list[str]:
        return subprocess.run(
            ["squeue", "-h", "-o", "%j"], env=environment, capture_output=True, text=True
        ).stdout.split()

    driver = detach(tmp_path, slurm, *LONG_RUN).stdout.split("job ")[1].split(";")[0]
    second = detach(tmp_path, slurm, *LONG_RUN)
    assert second.returncode == 2 and f"job {driver} drives this sweep" in second.stderr
    wait_for(lambda: records(tmp_path, "config.json"))
    process = start(tmp_path, *LONG_RUN, "cluster=slurm", SLURM_CONF=str(slurm))
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 2 and f"(job {driver}) drives this sweep" in out and "Traceback" not in out
    assert any(name.startswith(SWEEP) for name in queue())
    subprocess.run(["scancel", driver], env=environment, check=True)
    wait_for(lambda: not queue(), 60)
    assert "the same command goes on" in (tmp_path / "runs" / SWEEP / "driver.log").read_text()


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"PATH": "/nowhere"}, "there is no squeue"), ({"SLURM_CONF": "/nowhere/slurm.conf"}, "Slurm doesn't answer")],
)
def test_no_slurm_is_one_message(tmp_path, environment, said):
    pytest.importorskip("submitit", reason="hydra-submitit-launcher isn't installed: make setup CLUSTER=slurm")
    process = start(tmp_path, "cluster=slurm", **environment)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and said in out and len(out.splitlines()) == 1
    assert "runs, at most" in sweep(tmp_path, "cluster=slurm", "dry=true", **environment)


def test_what_slurm_refuses_is_one_message(slurm, tmp_path):
    process = start(tmp_path, "cluster=slurm", "cluster.partition=nowhere", SLURM_CONF=str(slurm))
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 2
    assert "Slurm refused the jobs" in out and "partition" in out and "Traceback" not in out


def test_ray_gives_the_same_tables(local, tmp_path):
    pytest.importorskip("ray", reason="hydra-ray-launcher isn't installed: make setup CLUSTER=ray")
    sweep(tmp_path, "cluster=ray", "cluster.workers=2")
    same(local, tmp_path)


@pytest.mark.parametrize("victim", ["^ray::_run_job", "/raylet/raylet "])
def test_a_killed_ray_worker_or_node_costs_no_run(local, tmp_path, victim):
    pytest.importorskip("ray", reason="hydra-ray-launcher isn't installed: make setup CLUSTER=ray")
    process = start(tmp_path, "cluster=ray", "cluster.workers=2")
    wait_for(lambda: records(tmp_path, "config.json"))
    found = subprocess.run(["pgrep", "-s", str(process.pid), "-f", victim], capture_output=True, text=True).stdout
    os.kill(int(found.split()[0]), signal.SIGKILL)
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0, out
    assert "a Ray worker ended" in out
    same(local, tmp_path)


def test_no_ray_to_join_is_one_message(tmp_path):
    pytest.importorskip("ray", reason="hydra-ray-launcher isn't installed: make setup CLUSTER=ray")
    process = start(tmp_path, "cluster=ray", "hydra.launcher.address=auto")
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 2
    assert "hydra.launcher.address=auto" in out and "Traceback" not in out


def test_a_gpu_that_no_ray_node_has_is_one_message(tmp_path):
    pytest.importorskip("ray", reason="hydra-ray-launcher isn't installed: make setup CLUSTER=ray")
    process = start(tmp_path, "cluster=ray", "cluster.workers=1", "cluster.gpus=1", CUDA_VISIBLE_DEVICES="")
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 2 and "cluster.gpus=1: no node of this Ray" in out and "Traceback" not in out
