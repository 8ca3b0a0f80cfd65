"""A sweep that is started and left: `make sweep … DETACH=1`. On Slurm its driver is a job itself, elsewhere a process
of its own; either writes to `driver.log` among the records, and `make status` sees how it goes.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.config import SuiteConfig, load
from experiments.errors import UserError
from experiments.files import write_atomically
from experiments.launch import slurm


def as_job(suite: SuiteConfig, command: list[str], log: Path) -> str:
    """Submit the driver: its jobs' partition and account, one processor, and the time that the partition gives."""
    name = f"driver-{slurm.job_name(suite)}"
    if ids := slurm.queued(name):
        raise UserError(
            f"{suite.name}: job {ids[0]} drives this sweep; wait for it, or stop it first: scancel {ids[0]}"
        )
    with slurm.only_driver(suite.records):
        pass
    options = ["--cpus-per-task=1", f"--job-name={name}", f"--output={log}", "--open-mode=append"]
    for key in ("partition", "account"):
        value = getattr(suite.cluster, key)
        options += [f"--{key}={value}"] if value else []
    submit = ["sbatch", "--parsable", *options, f"--wrap=exec {shlex.join(command)}"]
    done = subprocess.run(submit, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"Slurm refused the driver: {done.stderr.strip()}")
    return f"job {done.stdout.strip()}; scancel {done.stdout.strip()} stops it"


def as_process(command: list[str], log: Path) -> str:
    """Start the driver in a session of its own, so that it outlives this one."""
    with open(log, "a") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    return f"process {process.pid}; kill {process.pid} stops it"


def detach(overrides: Sequence[str]) -> None:
    """Start the driver of this sweep and leave it. Everything is checked first, as nobody will be looking."""
    command = [sys.executable, "-m", "experiments.cli.train", *overrides]
    suite = load(overrides)
    log = suite.records.resolve() / "driver.log"
    if not log.exists():
        write_atomically(log, b"")
    os.environ["OMP_NUM_THREADS"] = "1"
    who = as_job(suite, command, log) if suite.cluster.name == "slurm" else as_process(command, log)
    print(f"{suite.name}: {who}\nit writes to {log}")
