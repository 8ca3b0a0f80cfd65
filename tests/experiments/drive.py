"""Small sweeps as a user starts them, for tests of what happens to them."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

from experiments.tables.collecting import NOT_SCIENCE

ROOT = Path(__file__).parents[2]
SMALL = ["task=quadratic", "preset=smoke", "sweep.batch_sizes=[16,64]", "checkpoint_seconds=0.05"]
SMALL += ["task.dim=1000", "measure.curvature=false"]  # runs of a third of a second
SWEEP = "quadratic-smoke"
ENVIRONMENT = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def command(folder: Path, *more: str) -> list[str]:
    """A small sweep in `folder`."""
    where = [f"results={folder}/results", f"runs={folder}/runs"]
    return [sys.executable, "-m", "experiments.cli.train", *SMALL, *where, *more]


def start(folder: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    """It, in a session of its own."""
    return subprocess.Popen(
        command(folder, *more),
        cwd=ROOT,
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def sweep(folder: Path, *more: str, **environment: str) -> str:
    """It, to the end; what it prints."""
    process = start(folder, *more, **environment)
    out = process.communicate(timeout=280)[0]
    assert process.returncode == 0, out
    return out


def tables(folder: Path) -> list[pd.DataFrame]:
    """Its runs and curves, without clocks and machines."""
    found = [pd.read_parquet(folder / "results" / SWEEP / f"{name}.parquet") for name in ("runs", "curves")]
    return [table.drop(columns=[c for c in NOT_SCIENCE if c in table]) for table in found]


def same(first: Path, second: Path) -> None:
    """Row for row, and the fits byte for byte."""
    for a, b in zip(tables(first), tables(second), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)
    for name in ("fits.csv", "crossings.csv"):
        ours, theirs = (folder / "results" / SWEEP / name for folder in (first, second))
        assert ours.read_bytes() == theirs.read_bytes()
