"""What a sweep of a thousand short runs costs beside their training: `python benchmarks/sweep.py`.

A run's own time is its record's `seconds`. Whatever else the machine does slows both alike, so the overhead is also
given in processor seconds: the driver's, and the workers' by the share of their time that isn't the runs' own.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.config import load

ROOT = Path(__file__).parents[1]
WORKERS = 2
SWEEP = ["task=quadratic", "preset=smoke", "measure.curvature=false", f"cluster.workers={WORKERS}"]
SWEEP += ["sweep.batch_sizes=[16,64,256,1024]", "sweep.points=5", "sweep.seeds=84", "sweep.widen=0"]


def state(pid: int) -> tuple[float, float]:
    """(memory in MB, processor seconds) of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[21]) * resource.getpagesize() / 2**20, sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main(folder: str) -> None:
    where = [f"runs={folder}/runs", f"results={folder}/results"]
    command = [sys.executable, "-m", "experiments.cli.train", *SWEEP, *where]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    line, memory, driver, whole_driver, trained = "", [], 0.0, 0.0, 0.0
    while not line.startswith("goal"):  # the first line of the verdict
        line = process.stdout.readline()
        megabytes, whole_driver = state(process.pid)
        if found := re.search(r"(\d+) runs done, .* (\d+) s$", line):
            memory.append((int(found[1]), round(megabytes)))
            trained, driver = float(found[2]), whole_driver
    process.communicate()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    workers = used.ru_utime + used.ru_stime - whole_driver
    runs = pd.read_parquet(load([*SWEEP, *where]).tables / "runs.parquet")
    own = runs["seconds"].sum() / (WORKERS * trained)
    print(f"{len(runs)} runs in {trained:.0f} s on {WORKERS} workers, of whose time {own:.0%} was the runs' own")
    print(f"overhead of a run: {WORKERS * trained * (1 - own) / len(runs):.3f} worker-seconds of wall")
    print(f"in processor seconds: {(workers * (1 - own) + driver) / len(runs):.3f} (driver {driver / len(runs):.3f})")
    print("the driver's memory (runs done, MB):", *memory[:: max(1, len(memory) // 8)], memory[-1])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:  # W&B's mirror may be behind
        main(temporary)
