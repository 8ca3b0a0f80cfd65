"""B_crit without a sweep, by branching (Merrill et al. 2025): from checkpoints of one run, go on at several sizes.

`python -m experiments.cli.branch task=lm preset=small batch_size=320 lr=0.0098` trains a trunk, and where it passes
each of the sweep's goals, branches go on from its weights and its optimizer's state: one for each of the sweep's batch
sizes from the trunk's own up, on fresh data, all over the same number of examples, with the learning rate rescaled by
√(B/B₀) for Adam and RMSProp and by B/B₀ for SGD and momentum. B_crit is the largest B whose loss, and that of all
smaller ones, stays within a tolerance of the loss at B₀. Trunk and branches are records like any run's, so the same
command goes on where it stopped. The optimizer's second moments are the trunk's and adapt as fast as β₂ lets them.
"""

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import Field
from scipy.special import stdtrit

from experiments.config import Count, Positive, RunConfig, SuiteConfig, frozen
from experiments.errors import UserError
from experiments.single_run.layer_noise import TOTAL, layer_noise
from experiments.single_run.snapshots import branch, restored, trunk, workers
from experiments.tables.reading import write_csv
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord
from noisescale.pareto.fit import Estimate

COLUMNS = ["goal", "trunk", "trunk_step", "batch_size", "lr", "seed", "steps", "examples", "loss", "metric"]
WITH_SEEDS = 2


@frozen
class BranchConfig:
    """Branches go on for `share` times the examples that the trunk has seen, at batch sizes that make at least
    `min_steps` steps of that. `tolerance` is in the unit of the loss. The noise scale beside it comes from `noise_rows`
    times `noise_parts` micro-batches.
    """

    seeds: Annotated[int, Field(ge=WITH_SEEDS)] = 3
    share: Positive = 1.0
    min_steps: Count = 8
    tolerance: Positive = 0.02
    noise_rows: Annotated[int, Field(ge=3)] = 16
    noise_parts: Annotated[int, Field(ge=2)] = 32
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95


def rescaled(lr: float, optimizer: str, factor: float) -> float:
    """The learning rate for a batch `factor` times as large, to four digits."""
    return float(f"{lr * (factor if optimizer in ('sgd', 'momentum') else math.sqrt(factor)):.4g}")


def largest_within(batch_sizes: ArrayLike, excess: ArrayLike, tolerance: float, confidence: float = 0.95) -> Estimate:
    """Where the mean excess loss first passes `tolerance`, linear in ln B between batch sizes; inf where it never does.

    The interval's ends are where the mean plus and minus its margin of error pass it. The margin is Student's t times
    one standard error for all batch sizes, from the scatter over seeds pooled over them: every difference shares the
    loss at the first batch size, which is the noisiest. A branch that diverged has an excess of inf.

    Args:
        batch_sizes: (m,) rising; the first is the trunk's.
        excess: (seeds, m) loss minus the loss at the first batch size with the same seed; the first column is 0.
        tolerance: in the loss's unit.
        confidence: of the interval.

    Raises:
        ValueError: where the first column isn't 0 (NaN, where B₀ itself diverged), or a value is NaN.
    """
    log_b, differences = np.log(np.asarray(batch_sizes, dtype=float)), np.asarray(excess, dtype=float)
    if differences[:, 0].any() or np.isnan(differences).any():
        raise ValueError(f"excess needs zeros in its first column and no NaN, got {differences.tolist()}")
    seeds = len(differences)
    mean = differences.mean(0)
    stable = differences[:, 1:][:, np.isfinite(mean[1:])]
    degrees = (seeds - 1) * stable.shape[1]
    if degrees == 0:
        return Estimate(_passes(log_b, mean, tolerance), 0.0, math.inf)
    spread = math.sqrt(float(stable.var(0, ddof=1).mean()) / seeds)
    margin = float(stdtrit(degrees, (1 + confidence) / 2)) * spread * (np.arange(len(mean)) > 0)
    low, high = (_passes(log_b, mean + sign * margin, tolerance) for sign in (1, -1))
    return Estimate(_passes(log_b, mean, tolerance), low, high)


def _passes(log_b: np.ndarray, curve: np.ndarray, tolerance: float) -> float:
    above = np.flatnonzero(curve > tolerance)
    if not above.size:
        return math.inf
    i = above[0]
    share = (tolerance - curve[i - 1]) / (curve[i] - curve[i - 1])
    return float(np.exp(log_b[i - 1] + share * (log_b[i] - log_b[i - 1])))


def plan(config: BranchConfig, suite: SuiteConfig, run: RunConfig, seen: int) -> list[RunConfig]:
    """The branches of a checkpoint after `seen` examples; empty where that is too few for two batch sizes."""
    sizes = [run.batch_size, *(size for size in suite.sweep.batch_sizes if size > run.batch_size)]
    sizes = [size for size in sizes if config.share * seen >= config.min_steps * size]
    if len(sizes) < 2:
        return []
    ragged = [size for size in sizes if max(sizes) % size]
    if ragged:
        raise UserError(
            f"branches over the same examples need batch sizes that divide the largest; {ragged} do not divide "
            f"{max(sizes)}: set batch_size and sweep.batch_sizes accordingly"
        )
    examples = math.ceil(config.share * seen / max(sizes)) * max(sizes)
    return [
        replace(
            run,
            batch_size=size,
            lr=rescaled(run.lr, run.optimizer.name, size / run.batch_size),
            seed=run.seed + 1 + seed,
            max_steps=examples // size,
            stop_metric=None,
            measure=replace(run.measure, evaluations_per_octave=1, curvature=False),
        )
        for seed in range(config.seeds)
        for size in sizes
    ]


def measure(suite: SuiteConfig, config: BranchConfig) -> pd.DataFrame:
    """From trunk to tables: `branches.csv`, a row a branch; `branch_points.csv`, a row a goal; `branch_layers.csv`, a
    row a kind of layer at each goal.
    """
    single = suite.run
    run = suite.point(single.batch_size, single.lr, single.seed)
    folder = RunRecord(suite.records.with_name(f"{suite.records.name}-branch") / run.run_id)
    rows: list[dict[str, Any]] = []
    layers: list[pd.DataFrame] = []
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers(suite), mp_context=multiprocessing.get_context("spawn")) as pool:
        for goal, point in trunk(suite, run, folder).items():
            trainer = restored(suite, run, point)
            at = trainer.rows[-1]
            runs = plan(config, suite, run, at["examples"])
            if not runs:
                continue
            missing = [branched for branched in runs if RunRecord(point.folder / branched.run_id).read() is None]
            list(pool.map(partial(branch, suite, point), missing))
            ends = [
                _end(point, branched) | {"goal": goal, "trunk": run.run_id, "trunk_step": at["step"]}
                for branched in runs
            ]
            rows += ends
            noise = _noise(config, trainer)
            layers.append(noise.assign(goal=goal))
            found.append({"goal": goal, **_summary(config, ends, at, noise)})
            print(_line(found[-1]), flush=True)
    if not found:
        raise UserError(
            f"batch_size={run.batch_size} lr={run.lr:g}: the trunk passes no goal after enough steps to branch "
            f"({config.min_steps} at two batch sizes); take a larger branch.share or harder goals"
        )
    by_layer = pd.concat(layers)
    table = pd.DataFrame(found)
    write_csv(pd.DataFrame(rows)[COLUMNS], suite.tables / "branches.csv")
    write_csv(table, suite.tables / "branch_points.csv")
    write_csv(by_layer[["goal", *by_layer.columns.drop("goal")]], suite.tables / "branch_layers.csv")
    return table


def _end(point: RunRecord, run: RunConfig) -> dict[str, Any]:
    done = RunRecord(point.folder / run.run_id).read()
    assert done is not None
    last, diverged = done[2].iloc[-1], done[1]["status"] == "diverged"
    return {
        "batch_size": run.batch_size,
        "lr": run.lr,
        "seed": run.seed,
        "steps": int(last["step"]),
        "examples": int(last["examples"]),
        "loss": math.inf if diverged else float(last["loss"]),
        "metric": float(last["metric"]),
    }


def _noise(config: BranchConfig, trainer: Trainer) -> pd.DataFrame:
    """By kind of layer, with the trunk's weights and second moments."""
    run = trainer.config
    shape = (run.micro_batch, config.noise_rows, config.noise_parts)
    generator = run.stream("points")
    return layer_noise(trainer.task, trainer.flat, trainer.optimizer, *shape, generator, config.confidence)


def _summary(
    config: BranchConfig, ends: Sequence[dict[str, Any]], at: dict[str, Any], noise: pd.DataFrame
) -> dict[str, Any]:
    losses = pd.DataFrame(ends).pivot(index="seed", columns="batch_size", values="loss")
    excess = losses.sub(losses.iloc[:, 0], axis=0).to_numpy()
    b_crit = largest_within(losses.columns, excess, config.tolerance, config.confidence)
    return {
        "examples": at["examples"],
        "loss": at["loss"],
        "branch_examples": ends[0]["examples"],
        "tolerance": config.tolerance,
        "smallest": int(losses.columns[0]),
        "largest": int(losses.columns[-1]),
        "b_branch": b_crit.value,
        "b_branch_low": b_crit.low,
        "b_branch_high": b_crit.high,
        **{
            f"b_simple{'_preconditioned' if row['preconditioned'] else ''}{end}": row[f"b_simple{end}"]
            for row in noise[noise["group"] == TOTAL].to_dict("records")
            for end in ("", "_low", "_high")
        },
    }


def _line(row: dict[str, Any]) -> str:
    def shown(key: str) -> str:
        value, low, high = row[key], row[f"{key}_low"], row[f"{key}_high"]
        return f"{value:,.0f} [{low:,.0f}, {high:,.0f}]" if math.isfinite(value) else f"above {row['largest']:,}"

    line = f"goal {row['goal']:g} (loss {row['loss']:.3g}): B_crit by branching {shown('b_branch')}"
    line += f"; B_simple {shown('b_simple')}"
    if "b_simple_preconditioned" in row:
        line += f", preconditioned {shown('b_simple_preconditioned')}"
    return line
