"""Does B_simple follow the temperature? (Fig. 15; disputed by Gray 2024, who saw only the learning rate move it.)

`python -m experiments.cli.temperature task=svhn preset=temperature` trains a trunk, and where it passes each goal, goes
on four ways over the same number of examples: as before, and with the temperature ε/B cut 16-fold through the learning
rate, through the batch size, and through both. B_simple is measured over the second half of each branch, from all its
micro-batches. Trunk and branches are records: the same command goes on where it stopped.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.config import RunConfig, SuiteConfig
from experiments.errors import UserError
from experiments.single_run.snapshots import branch, trunk, workers
from experiments.tables.reading import write_csv
from experiments.training.record import RunRecord
from noisescale import ratio_of_means

FACTOR = 16
SEEDS = 4
STEPS = 32  # of the largest batch


class Cut(NamedTuple):
    """How a branch differs from its trunk."""

    name: str
    lr: float
    batch: int


CUTS = (Cut("none", 1, 1), Cut("lr", 1 / FACTOR, 1), Cut("batch", 1, FACTOR), Cut("both", 1 / 4, 4))


def plan(run: RunConfig) -> list[tuple[Cut, RunConfig]]:
    """The branches of one checkpoint: every cut with every seed, over the same number of examples."""
    examples = STEPS * FACTOR * run.batch_size
    return [
        (
            cut,
            replace(
                run,
                lr=float(f"{run.lr * cut.lr:.4g}"),
                batch_size=run.batch_size * cut.batch,
                seed=run.seed + 1 + seed,
                max_steps=examples // (run.batch_size * cut.batch),
                stop_metric=None,
                measure=replace(run.measure, evaluations_per_octave=2),
            ),
        )
        for seed in range(SEEDS)
        for cut in CUTS
    ]


def second_half(curve: pd.DataFrame) -> dict[str, float]:
    """Means of |G|² and tr Σ over the measurements of a branch's second half, and where it ended."""
    rows = curve[(curve["step"] > curve["step"].max() / 2) & (curve["noise_steps"] > 0)]
    weights = rows["noise_steps"]
    return {
        "grad_sq_norm": float(np.average(rows["grad_sq_norm"], weights=weights)),
        "trace_cov": float(np.average(rows["trace_cov"], weights=weights)),
        "loss": float(curve["loss"].iloc[-1]),
        "metric": float(curve["metric"].iloc[-1]),
    }


def by_cut(branches: pd.DataFrame) -> pd.DataFrame:
    """A row a (goal, cut): B_simple with its 95% interval over the seeds; `factor` is it over the uncut branches'."""
    found = []
    for (goal, cut), rows in branches.groupby(["goal", "cut"], sort=False):
        ratio = ratio_of_means(rows["trace_cov"].to_numpy(), rows["grad_sq_norm"].to_numpy())
        found.append(
            {
                "goal": goal,
                "cut": cut,
                "batch_size": rows["batch_size"].iloc[0],
                "lr": rows["lr"].iloc[0],
                "metric": rows["metric"].mean(),
                "b_simple": ratio.value,
                "b_simple_low": ratio.low,
                "b_simple_high": ratio.high,
                "determined": ratio.determined,
            }
        )
    table = pd.DataFrame(found)
    uncut = table[table["cut"] == "none"].set_index("goal")["b_simple"]
    table["factor"] = table["b_simple"] / table["goal"].map(uncut)
    return table


def measure(suite: SuiteConfig) -> pd.DataFrame:
    """`temperature_branches.csv`, a row a branch; `temperature.csv`, a row a goal and cut."""
    run = suite.point(suite.run.batch_size, suite.run.lr, suite.run.seed)
    if run.batch_size < 2 * run.micro_batch:
        raise UserError(
            f"batch_size={run.batch_size} is below two micro-batches of {run.micro_batch}, so its noise is not seen\n"
            "set a smaller micro_batch"
        )
    folder = RunRecord(suite.records.with_name(f"{suite.records.name}-temperature") / run.run_id)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers(suite), mp_context=multiprocessing.get_context("spawn")) as pool:
        for goal, point in trunk(suite, run, folder).items():
            branches = plan(run)
            missing = [config for _, config in branches if RunRecord(point.folder / config.run_id).read() is None]
            list(pool.map(partial(branch, suite, point), missing))
            for cut, config in branches:
                done = RunRecord(point.folder / config.run_id).read()
                assert done is not None
                if done[1]["status"] == "diverged":
                    print(f"goal {goal:g}, cut {cut.name}, seed {config.seed}: diverged, left out", flush=True)
                    continue
                setting = {key: getattr(config, key) for key in ("batch_size", "lr", "seed")}
                rows.append({"goal": goal, "cut": cut.name} | setting | second_half(done[2]))
            for line in by_cut(pd.DataFrame(rows)).query("goal == @goal").itertuples():
                print(
                    f"goal {goal:g}, cut {line.cut:5}: B = {line.batch_size:5,}, ε = {line.lr:<8g} "
                    f"B_simple {line.b_simple:,.0f} [{line.b_simple_low:,.0f}, {line.b_simple_high:,.0f}], "
                    f"{line.factor:.2f} times the uncut",
                    flush=True,
                )
    if not rows:
        raise UserError(f"batch_size={run.batch_size} lr={run.lr:g}: the trunk passes no goal; set easier sweep.goals")
    branches = pd.DataFrame(rows)
    table = by_cut(branches)
    write_csv(branches, suite.tables / "temperature_branches.csv")
    write_csv(table, suite.tables / "temperature.csv")
    return table
