"""Shares of a sweep as arrays of Slurm jobs, submitted by submitit and watched through `squeue`.

What a job returns is never read: the records say what is finished. A job that is killed, preempted or lost therefore
costs nothing but its time, and a cluster without accounting (`sacct`) will do.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.singleton import Singleton
from hydra.plugins.launcher import Launcher

from experiments.errors import UserError

LARGEST_ARRAY = 1000  # Slurm's MaxArraySize is 1001 where nobody has set it
LONGEST_PAUSE = 15.0


def submit(job: Launcher, params: dict[str, Any], overrides: Sequence[Sequence[str]], first: int) -> list[str]:
    """Arrays of jobs that call `job` with each of `overrides`; their Slurm ids. `params` are those of Hydra's
    `submitit_slurm`.
    """
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
        ids = []
        for start in range(0, len(overrides), LARGEST_ARRAY):
            part = overrides[start : start + LARGEST_ARRAY]
            numbers = range(first + start, first + start + len(part))
            with _outside_a_job():
                jobs = executor.map_array(
                    job,
                    [list(one) for one in part],
                    ["hydra.sweep.dir"] * len(part),
                    numbers,
                    [str(number) for number in numbers],
                    [Singleton.get_state()] * len(part),
                )
            ids.append(jobs[0].job_id.partition("_")[0])
    except FailedJobError as error:
        lines = [line for line in str(error).splitlines() if "sbatch" in line]
        raise UserError(f"Slurm refused the jobs: {lines[-1] if lines else error}") from None
    except RuntimeError as error:
        raise UserError(f"{error}; cluster=slurm needs Slurm's commands on this machine") from None
    return ids


def wait_until_ended(unfinished: Callable[[], bool]) -> None:
    """Ask ever more rarely, as the controller has other users too."""
    pause = 0.5
    while unfinished():
        time.sleep(pause)
        pause = min(1.3 * pause, LONGEST_PAUSE)


def queued(*filters: str) -> list[str]:
    """Ids of this user's jobs that wait or run, by `squeue`'s filters. A controller that doesn't answer has lost
    nothing: the jobs count as queued until it is back.
    """
    command = ["squeue", "--noheader", "--me", "--format=%A", *filters]
    while True:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return sorted(set(done.stdout.split()))
        if "Invalid job id" in done.stderr:  # long ended, and forgotten
            return []
        time.sleep(LONGEST_PAUSE)


def cancel(ids: Sequence[str]) -> None:
    """At once: what a job has not checkpointed is trained again."""
    for how in (["--state=PENDING"], ["--signal=KILL", "--full"]):
        subprocess.run(["scancel", "--quiet", *how, *ids], capture_output=True)


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
