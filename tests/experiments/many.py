"""Records of runs that were never trained, as many as are wanted, for tests and measurements of scale."""

import json
import math
from dataclasses import asdict

import numpy as np

from experiments.config import SuiteConfig
from experiments.training.record import SEALED, RunRecord, _bytes, _seal

ROWS = 60
SUMMARY = {
    "status": "reached",
    "step": ROWS - 1,
    "examples": 64 * (ROWS - 1),
    "best_metric": math.exp(-(ROWS - 1) / 10),
    "parameters": 128,
    "sample_size": 1,
    "data": "generated",
    "seconds": 6.0,
    "eval_seconds": 0.1,
    "measure_seconds": 0.1,
    "device": "cpu",
    "versions": "torch 2",
    "git_sha": "0000000",
    "finished_at": "2026-11-30T00:00:00+00:00",
}


def make_records(suite: SuiteConfig, count: int) -> None:
    """`count` finished records in `suite`'s folder, seeds 0, 1, … at every batch size in turn; all have one curve."""
    sizes = suite.sweep.batch_sizes
    model = RunRecord(suite.records.parent / "model")
    model.save_curve([_row(step) for step in range(ROWS)], [])
    curve = (model.folder / "curve.parquet").read_bytes()
    for i in range(count):
        run = suite.point(sizes[i % len(sizes)], 0.1, i // len(sizes))
        record = RunRecord(suite.records / run.run_id)
        record.folder.mkdir(parents=True)
        (record.folder / "curve.parquet").write_bytes(curve)
        (record.folder / "config.json").write_text(json.dumps(asdict(run), indent=1, sort_keys=True) + "\n")
        files = {name: _bytes(f"{record.folder}/{name}") for name in SEALED}
        seal = {"sha256": _seal(SUMMARY, files)}
        (record.folder / "summary.json").write_text(json.dumps(seal | SUMMARY, indent=1, sort_keys=True) + "\n")


def _row(step: int) -> dict[str, float]:
    value = math.exp(-step / 10)
    noise = {"grad_sq_norm": value, "trace_cov": 4 * value, "noise_examples": 64, "noise_steps": 1}
    scale = {"b_simple": 4.0, "b_simple_low": 3.0, "b_simple_high": 5.0}
    curvature = {"grad_hess_grad": np.nan, "trace_hess_cov": np.nan}
    where = {"step": step, "examples": 64 * step, "seconds": 0.1 * step}
    return {**where, "loss": value, "metric": value, **noise, **scale, **curvature}
