"""The short while on a GPU, on the processor: it spends its budget on what is missing, and stops in time."""

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from drive import ENVIRONMENT, ROOT


def spend(minutes: float, out: Path, *more: str) -> str:
    command = [sys.executable, "-m", "experiments.gpu", "--minutes", str(minutes), "--out", str(out)]
    done = subprocess.run(
        [*command, "--device", "cpu", "--preset", "smoke", "--sweeps-only", *more],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_is_missing_is_made_and_not_made_again(tmp_path):
    small = ["--tasks", "quadratic", "--", "sweep.batch_sizes=[16,64]", "measure.curvature=false"]
    assert "quadratic-smoke: ok" in spend(3, tmp_path, *small)
    assert len(pd.read_parquet(tmp_path / "quadratic-smoke" / "runs.parquet")) == 7
    assert (tmp_path / "quadratic-smoke" / "fits.csv").exists()
    assert "quadratic-smoke" not in spend(3, tmp_path, *small).replace(str(tmp_path), "")


@pytest.mark.slow
def test_it_stops_in_time_and_keeps_what_is_finished(tmp_path):
    started = time.monotonic()
    out = spend(0.4, tmp_path, "--tasks", "digits", "--", "sweep.seeds=20", "sweep.batch_sizes=[8,16,32,64,128,256]")
    assert "seconds left" in out
    assert time.monotonic() - started < 60 + 0.4 * 60
    finished = list((tmp_path / "runs").rglob("summary.json"))
    table = tmp_path / "digits-smoke" / "runs.parquet"
    assert len(finished) == (len(pd.read_parquet(table)) if table.exists() else 0)


def test_without_cuda_it_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = subprocess.run(
        [sys.executable, "-m", "experiments.gpu"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 2 and "--device cpu" in done.stderr and "Traceback" not in done.stderr
