"""The short while on a GPU, on the processor: it spends its budget on what is missing, and stops in time."""

import argparse
import re
import subprocess
import sys
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest
from drive import ENVIRONMENT, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from experiments.sweep.gpu_session import gaps

BARE = ["torch", "torchvision", "numpy", "pandas", "scipy", "matplotlib", "pytest", "pip", "setuptools", "noisescale"]
HIDE = """import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if path is None and name in {hidden!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def needed(names: list[str]) -> set[str]:
    """Distributions and what they require, as far as it is installed here."""
    found: set[str] = set()
    while names:
        name = canonicalize_name(names.pop())
        with suppress(metadata.PackageNotFoundError):
            if name not in found:
                for requirement in map(Requirement, metadata.requires(name) or []):
                    if name != "noisescale" and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
                        names.append(requirement.name)
                found.add(name)
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> dict[str, str]:
    """An environment in which nothing can be imported but what a bare machine has and what `make gpu-wheels` brings,
    without what that would require."""
    text = (ROOT / "scripts" / "gpu_wheels.sh").read_text()
    wheels = text.partition('names = """')[2].partition('"""')[0].split() + re.findall(r'"([\w-]+)==', text)
    assert "hydra-core" in wheels and "antlr4-python3-runtime" in wheels
    allowed = needed(list(BARE)) | {canonicalize_name(name) for name in wheels}
    homes = metadata.packages_distributions().items()
    hidden = {name for name, of in homes if not any(canonicalize_name(one) in allowed for one in of)}
    assert {"wandb", "ray", "tokenizers"} <= hidden | {"wandb", "ray", "tokenizers"} - dict(homes).keys()
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=hidden - {"hydra_plugins", "benchmarks"}))
    return {"PYTHONPATH": str(folder)}


def spend(minutes: float, out: Path, *more: str, **environment: str) -> str:
    command = [sys.executable, "-m", "experiments.cli.gpu", "--minutes", str(minutes), "--out", str(out)]
    done = subprocess.run(
        [*command, "--device", "cpu", "--preset", "smoke", "--sweeps-only", *more],
        cwd=ROOT,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_is_missing_is_made_and_not_made_again(bare, tmp_path):
    """On a machine that has no more than PyTorch and wheels/."""
    small = ["--tasks", "quadratic", "--", "sweep.batch_sizes=[16,64]", "measure.curvature=false"]
    assert "quadratic-smoke: ok" in spend(3, tmp_path, *small, **bare)
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


def test_a_damaged_table_leaves_its_sweep_out_and_no_other(tmp_path, capsys):
    (tmp_path / "digits-smoke").mkdir()
    (tmp_path / "digits-smoke" / "runs.parquet").write_bytes(b"PAR1")
    options = argparse.Namespace(
        preset="smoke", tasks=["digits", "quadratic"], device="cpu", override=[], out=str(tmp_path)
    )
    assert [suite.name for _, suite, _ in gaps(options)] == ["quadratic-smoke"]
    assert f"digits-smoke: left out: {tmp_path}/digits-smoke/runs.parquet can't be read" in capsys.readouterr().out


def test_without_cuda_it_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli.gpu"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 2 and "--device cpu" in done.stderr and "Traceback" not in done.stderr
