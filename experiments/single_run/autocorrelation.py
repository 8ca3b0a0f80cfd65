"""How long the gradient keeps its direction while a run goes on (Fig. 18: under Adam, which averages over 1/(1 − β₁)).

`python -m experiments.cli.autocorrelation task=svhn_adam preset=autocorrelation` trains a trunk and, where it passes
each goal, goes on from there several times on different batches, taking the gradient of fresh examples at every step.
ρ(τ) = ⟨G_t · G_{t+τ}⟩ / ⟨½ (|G_t|² + |G_{t+τ}|²)⟩ is the true gradient's: batches at different steps, and the two
halves of one step's, are independent, so every product is without bias.
"""

from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from experiments.config import Count, RunConfig, SuiteConfig, frozen
from experiments.errors import UserError
from experiments.single_run.snapshots import gradient, restored, trunk
from experiments.tables.reading import write_csv
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord
from noisescale import ratio_of_means


@frozen
class LagConfig:
    """`continuations` of `steps` steps from each goal; at each step two gradients of `half` examples."""

    steps: Annotated[int, Field(ge=4)] = 64
    half: Count = 256
    continuations: Annotated[int, Field(ge=3)] = 6


def lags(steps: int) -> list[int]:
    """1, 2, 4, … up to half of `steps`."""
    return [2**k for k in range(steps.bit_length()) if 2**k <= steps // 2]


def products(first: torch.Tensor, second: torch.Tensor, lag: int) -> tuple[float, float]:
    """(⟨G_t · G_{t+τ}⟩, ⟨½ (|G_t|² + |G_{t+τ}|²)⟩) over t, from the gradients of two independent halves, (steps, P)."""
    mean = (first + second) / 2
    across = (mean[: len(mean) - lag] * mean[lag:]).sum(1)
    square = (first * second).sum(1)
    return float(across.mean()), float((square[: len(mean) - lag] + square[lag:]).mean() / 2)


def walk(config: LagConfig, trainer: Trainer, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of two halves at each of the next steps, (steps, P) each."""
    halves: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for _ in range(config.steps):
        for half in halves:
            half.append(torch.cat([part.reshape(-1) for part in gradient(trainer, config.half, generator)]))
        trainer.train_step()
    return torch.stack(halves[0]), torch.stack(halves[1])


def at(config: LagConfig, suite: SuiteConfig, run: RunConfig, point: RunRecord) -> list[dict[str, Any]]:
    """A row a lag, with the 95% interval over continuations."""
    pairs = []
    for continuation in range(config.continuations):
        trainer = restored(suite, run, point)
        trainer.generator = run.stream(f"continuation {continuation}")
        found = walk(config, trainer, run.stream(f"lags {continuation}"))
        pairs.append([products(*found, lag) for lag in lags(config.steps)])
    rows = []
    for lag, pair in zip(lags(config.steps), np.array(pairs).transpose(1, 2, 0), strict=True):
        ratio = ratio_of_means(*pair)
        low, high = {"correlation_low": ratio.low}, {"correlation_high": ratio.high}
        rows.append({"lag": lag, "correlation": ratio.value} | low | high | {"determined": ratio.determined})
    return rows


def measure(suite: SuiteConfig, config: LagConfig) -> pd.DataFrame:
    """`autocorrelation.csv`, a row a goal and lag."""
    run = suite.point(suite.run.batch_size, suite.run.lr, suite.run.seed)
    folder = RunRecord(suite.records.with_name(f"{suite.records.name}-local") / run.run_id)
    setting = {
        "optimizer": run.optimizer.name,
        "beta1": run.optimizer.beta1,
        "batch_size": run.batch_size,
        "lr": run.lr,
    }
    rows = []
    for goal, point in trunk(suite, run, folder).items():
        found = at(config, suite, run, point)
        rows += [{"goal": goal} | setting | row for row in found]
        print(f"goal {goal:g}: " + "; ".join(f"{r['lag']} steps {r['correlation']:.2f}" for r in found), flush=True)
    if not rows:
        raise UserError(f"batch_size={run.batch_size} lr={run.lr:g}: the run passes no goal; set easier sweep.goals")
    table = pd.DataFrame(rows)
    write_csv(table, suite.tables / "autocorrelation.csv")
    return table
