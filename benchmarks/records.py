"""What `make status` and `make collect` cost with thousands of records: `python benchmarks/records.py [count ...]`.

Each command runs in a process of its own; seconds are of the wall and of its processor, the start (imports) with them.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/experiments"))

from many import make_records

from experiments.config import load

ROOT = Path(__file__).parents[1]
COUNTS = (0, 1_000, 10_000)


def measure(command: str, where: list[str]) -> None:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run = [sys.executable, "-m", f"experiments.cli.{command}", "task=quadratic", "preset=smoke", *where]
    subprocess.run(run, cwd=ROOT, check=True, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {command:<10}{wall:>8.1f}{spent:>8.1f}   {after.ru_maxrss / 2**20:.1f} GB at most so far", flush=True)


def main(counts: list[int]) -> None:
    print("records, commands: seconds of the wall, of the processor")
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            where = [f"runs={folder}/runs", f"results={folder}/results"]
            make_records(load(["task=quadratic", "preset=smoke", *where]), count)
            print(f"{count}")
            for command in ("status", "collect", "status"):
                measure(command, where)


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or list(COUNTS))
