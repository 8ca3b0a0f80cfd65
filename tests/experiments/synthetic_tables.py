"""Tables of a sweep that never ran, with every truth planted.

A run makes ds = eff · dS/(1 + 𝓑(s)/B) of progress a step, 𝓑(s) = start + slope · s, so S(s) = (s + (start · s + slope
· s²/2)/B)/eff and B_crit at progress s is start + slope · s/2 exactly. The metric is 1/(1 + s/10). The best learning
rate is lr_best · B/(B + start).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.tables.reading import Tables


@dataclass(frozen=True)
class Planted:
    start: float = 20.0
    slope: float = 0.5
    scatter: float = 0.0  # of each seed's speed, in log
    metric_noise: float = 0.0  # of the evaluated metric, in log
    norm_noise: float = 0.0  # 1 for the sampling noise of n examples: 𝓑·√2/n in |G|² (relative), √(2/n) in tr Σ
    batch_sizes: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    lr_steps: tuple[int, ...] = (-2, -1, 0, 1, 2)
    seeds: int = 3
    budget: float = 150.0  # of progress

    def noise(self, s):
        return self.start + self.slope * s

    def progress(self, goal):
        return 10 * (1 / goal - 1)

    def b_crit(self, goal):
        return self.start + self.slope * self.progress(goal) / 2

    def steps(self, goal, batch_size):
        s = self.progress(goal)
        return s + (self.start * s + self.slope * s * s / 2) / batch_size


def plant(truth: Planted = Planted(), direction: str = "min", seed: int = 0) -> Tables:
    rng = np.random.default_rng(seed)
    runs, curves = [], []
    for size in truth.batch_sizes:
        for j in truth.lr_steps:
            for k in range(truth.seeds):
                lr = float(f"{0.1 * size / (size + truth.start) * 2.0**j:.4g}")
                efficiency = (1 - 0.15 * j * j) * np.exp(truth.scatter * rng.standard_normal())
                run_id = f"planted-{len(runs):04d}"
                rows, status = _curve(truth, size, efficiency, rng, j)
                rows["run_id"] = run_id
                if direction == "max":
                    rows["metric"] = 1 - rows["metric"]
                curves.append(rows)
                runs.append(
                    dict(
                        run_id=run_id,
                        task="planted",
                        preset="small",
                        unit="image",
                        sample_size=1,
                        metric="error" if direction == "min" else "accuracy",
                        direction=direction,
                        data="none",
                        parameters=7,
                        optimizer="sgd",
                        batch_size=size,
                        micro_batch=64,
                        lr=lr,
                        seed=k,
                        status=status,
                        step=int(rows["step"].iloc[-1]),
                        examples=int(rows["examples"].iloc[-1]),
                        best_metric=rows["metric"].min(),
                        config='{"measure": {"probe_examples": 64}, "task": {"name": "digits"}}',
                        record_version=1,
                        seconds=1.0,
                        eval_seconds=0.1,
                        host="h",
                        versions="{}",
                        git_sha="0",
                        finished_at="2026-01-01T00:00:00",
                    )
                )
    return Tables(Path("planted-small"), pd.DataFrame(runs), pd.concat(curves, ignore_index=True))


def _curve(truth, size, efficiency, rng, j):
    diverged = j == 2 and size >= 256
    progress = np.linspace(0, truth.budget, 20_000)
    steps_at = (progress + (truth.start * progress + truth.slope * progress**2 / 2) / size) / efficiency
    last = int(steps_at[-1])
    step = np.unique(np.concatenate([[0], np.round(2 ** np.arange(0, np.log2(last), 1 / 6)), [last]])).astype(int)
    s = np.interp(step, steps_at, progress)
    before = np.concatenate([[0], step[:-1]])
    between = np.interp(np.maximum(before, (before + step - 1) / 2), steps_at, progress)
    metric = 1 / (1 + s / 10) * np.exp(truth.metric_noise * rng.standard_normal(len(s)))
    seen = np.maximum(np.diff(step, prepend=0) * size, 64)
    mean_square = np.exp(-between / 50)
    square = mean_square * (
        1 + truth.norm_noise * np.sqrt(2) * truth.noise(between) / seen * rng.standard_normal(len(s))
    )
    trace = (
        truth.noise(between) * mean_square * (1 + truth.norm_noise * np.sqrt(2 / seen) * rng.standard_normal(len(s)))
    )
    rows = pd.DataFrame(
        dict(
            step=step,
            examples=step * size,
            seconds=step / 1e3,
            loss=metric,
            metric=metric,
            grad_sq_norm=square,
            trace_cov=trace,
            noise_examples=seen,
            noise_steps=1,
            b_simple=np.nan,
            b_simple_low=np.nan,
            b_simple_high=np.nan,
            grad_hess_grad=np.nan,
            trace_hess_cov=np.nan,
        )
    )
    if diverged:
        rows = rows.iloc[:5].copy()
        rows.loc[rows.index[-1], ["metric", "loss"]] = np.nan
    return rows, "diverged" if diverged else "not_reached"


def save(tables: Tables, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tables.runs.to_parquet(folder / "runs.parquet")
    tables.curves.to_parquet(folder / "curves.parquet")
    return folder
