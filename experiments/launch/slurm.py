"""Shares of a sweep as arrays of Slurm jobs, submitted by submitit and watched through `squeue`.

What a job returns is never read: the records say what is finished. A job that is killed, preempted or lost therefore
costs nothing but its time, and a cluster without accounting (`sacct`) will do.
"""

import fcntl
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.plugins.launcher import Launcher

from experiments.config import SuiteConfig
from experiments.errors import UserError
from experiments.files import GO_ON

LARGEST_ARRAY = 1000  # Slurm's MaxArraySize is 1001 where nobody has set it
LONGEST_PAUSE = 15.0


def job_name(suite: SuiteConfig) -> str:
    """What all jobs of this sweep in this folder are called, and no others."""
    place = hashlib.sha256(str(suite.records.resolve()).encode()).hexdigest()[:8]
    return f"{suite.name}-{place}"


@contextmanager
def only_driver(records: Path) -> Iterator[None]:
    """Refuse to be the second driver of a sweep: each would hold what the other's jobs wait for."""
    job = os.environ.get("SLURM_JOB_ID")
    me = f"process {os.getpid()} on {socket.gethostname()}" + (f" (job {job})" if job else "")
    path = records / "driver.lock"
    records.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(f"{records}: {file.read()} drives this sweep; wait for it, or stop it first") from None
        file.truncate(0)
        file.write(me)
        file.flush()
        yield


def submit(job: Launcher, params: dict[str, Any], overrides: Sequence[Sequence[str]], first: int) -> None:
    """Arrays of jobs that call `job` with each of `overrides`. `params` are those of Hydra's `submitit_slurm`."""
    import submitit
    from submitit.core.utils import FailedJobError

    params = dict(params)
    folder, timeouts = params.pop("submitit_folder"), params.pop("max_num_timeout")
    shared = (
        "timeout_min",
        "cpus_per_task",
        "gpus_per_node",
        "tasks_per_node",
        "mem_gb",
        "nodes",
        "name",
        "stderr_to_stdout",
    )
    try:
        executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=timeouts)
        executor.update_parameters(**{k if k in shared else f"slurm_{k}": v for k, v in params.items()})
        for start in range(0, len(overrides), LARGEST_ARRAY):
            part = overrides[start : start + LARGEST_ARRAY]
            numbers = range(first + start, first + start + len(part))
            with _outside_a_job():
                executor.map_array(
                    job,
                    [list(one) for one in part],
                    ["hydra.sweep.dir"] * len(part),
                    numbers,
                    [str(number) for number in numbers],
                    [Singleton.get_state()] * len(part),
                )
    except FailedJobError as error:
        lines = [line for line in str(error).splitlines() if "sbatch" in line]
        raise UserError(f"Slurm refused the jobs: {lines[-1] if lines else error}") from None
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; {GO_ON}") from None
    except RuntimeError as error:
        raise UserError(f"{error}; cluster=slurm needs Slurm's commands on this machine") from None


@contextmanager
def seen_through(name: str) -> Iterator[None]:
    """After the body, wait for the jobs of this name; where the driver is stopped, cancel them."""
    try:
        yield
        pause = 0.5
        while _unfinished(name):
            time.sleep(pause)
            pause = min(1.3 * pause, LONGEST_PAUSE)  # ever more rarely, as the controller has other users too
    except KeyboardInterrupt:
        cancel(name)
        raise


def queued(name: str) -> list[str]:
    """Ids of this user's jobs of this name that wait or run."""
    command = ["squeue", "--noheader", "--me", "--format=%A", f"--name={name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError("cluster=slurm needs Slurm's commands on this machine; there is no squeue") from None
    if done.returncode:
        *_, said = ["squeue failed", *done.stderr.strip().splitlines()]
        raise UserError(f"cluster=slurm, but Slurm doesn't answer: {said}")
    return sorted(set(done.stdout.split()))


def _unfinished(name: str) -> bool:
    """A controller that stops answering has lost nothing: the jobs count as queued until it is back."""
    try:
        return bool(queued(name))
    except UserError:
        return True


def cancel(name: str) -> None:
    """At once: what a job has not checkpointed is trained again."""
    for how in (["--state=PENDING"], ["--signal=KILL", "--full"]):
        subprocess.run(["scancel", "--quiet", *how, f"--name={name}"], capture_output=True)


@contextmanager
def _outside_a_job() -> Iterator[None]:
    """Jobs submitted from within a job don't inherit its shape."""
    inside = "SLURM_JOB_ID" in os.environ
    ours = [key for key in os.environ if key.startswith(("SLURM_", "SBATCH_", "SRUN_")) and key != "SLURM_CONF"]
    hidden = {key: os.environ.pop(key) for key in ours if inside}
    try:
        yield
    finally:
        os.environ.update(hidden)
