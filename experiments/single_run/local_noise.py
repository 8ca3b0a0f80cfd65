"""B_noise at points of one run, by the paper's line searches and by Hessian-vector products (Figs 5, 7 and 17).

`python -m experiments.cli.local_noise task=svhn preset=local_noise` trains one run and, where it passes each goal,
searches along gradients of several batch sizes for the step that lowers the loss on the fixed set the most, fits ΔL(B)
= ΔL_max/(1 + B_noise/B), and takes GᵀHG and tr HΣ from independent triples of batches. B_simple at the same weights
stands beside them. The same command starts from the run's checkpoints where they are there.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from experiments.config import Count, RunConfig, SuiteConfig, frozen
from experiments.errors import UserError
from experiments.single_run.layer_noise import TOTAL, layer_noise
from experiments.single_run.snapshots import gradient, restored, trunk
from experiments.tables.reading import write_csv
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord
from noisescale import fit_line_searches, hessian_noise, line_search, ratio_of_means


@frozen
class LocalConfig:
    """Line searches: `repetitions` at each of `batch_sizes`, each along `directions` gradients with one common step.

    Hessian: `triples` of three batches of `hessian_batch`. B_simple: `noise_rows` times `noise_parts` micro-batches.
    """

    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=3)] = (32, 128, 512, 2048)
    directions: Count = 4
    repetitions: Annotated[int, Field(ge=2)] = 4
    triples: Annotated[int, Field(ge=3)] = 24
    hessian_batch: Count = 512
    noise_rows: Annotated[int, Field(ge=3)] = 16
    noise_parts: Annotated[int, Field(ge=2)] = 32


def searches(config: LocalConfig, trainer: Trainer, generator: torch.Generator) -> list[dict[str, Any]]:
    """A row a line search."""
    task, rows = trainer.task, []

    def loss(_: Any) -> Tensor:
        return torch.tensor(task.evaluate().loss, dtype=torch.float64)

    for size in config.batch_sizes:
        for repetition in range(config.repetitions):
            directions = [gradient(trainer, size, generator) for _ in range(config.directions)]
            found = line_search(task.model, loss, directions)
            rows.append({"batch_size": size, "repetition": repetition, "step": found.step, "decrease": found.decrease})
    return rows


def by_search(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """B_noise from the decreases, or why there is none."""
    table = pd.DataFrame(rows).pivot(index="batch_size", columns="repetition", values="decrease")
    try:
        fit = fit_line_searches(table.index, table.to_numpy())
    except ValueError as error:
        return _found("line search", float("nan"), 0.0, float("inf"), False, str(error))
    return _found("line search", fit.b_noise, fit.low, fit.high, fit.determined, fit.remark)


def by_hessian(config: LocalConfig, trainer: Trainer, generator: torch.Generator) -> dict[str, Any]:
    """B_noise from GᵀHG and tr HΣ."""
    task, size = trainer.task, config.hessian_batch
    pairs = []
    for _ in range(config.triples):
        first, second, third = (task.batch(size // task.sample_size, generator) for _ in range(3))
        pairs.append(hessian_noise(task.model, lambda _, batch: task.loss(batch), (first, second, third), (size, size)))
    ratio = ratio_of_means([float(p.trace_hess_cov) for p in pairs], [float(p.grad_hess_grad) for p in pairs])
    return _found("Hessian", ratio.value, ratio.low, ratio.high, ratio.determined, ratio.remark)


def simple(config: LocalConfig, trainer: Trainer, generator: torch.Generator) -> dict[str, Any]:
    """B_simple at the same weights."""
    shape = (trainer.config.micro_size, config.noise_rows, config.noise_parts)
    noise = layer_noise(trainer.task, trainer.flat, trainer.optimizer, *shape, generator)
    row = noise[(noise["group"] == TOTAL) & ~noise["preconditioned"]].iloc[0]
    return _found("b_simple", row["b_simple"], row["b_simple_low"], row["b_simple_high"], row["determined"], "")


def _found(quantity: str, value: float, low: float, high: float, determined: bool, remark: str) -> dict[str, Any]:
    return {
        "quantity": quantity,
        "value": value,
        "low": low,
        "high": high,
        "determined": bool(determined),
        "remark": remark,
    }


def at(config: LocalConfig, suite: SuiteConfig, run: RunConfig, point: RunRecord) -> tuple[list[Any], list[Any]]:
    """(a row a quantity, a row a line search) at one checkpoint."""
    trainer = restored(suite, run, point)
    generator = run.stream("points")
    where = {key: trainer.rows[-1][key] for key in ("step", "examples", "loss", "metric")}
    where = {f"at_{key}" if key == "step" else key: value for key, value in where.items()}
    lines = searches(config, trainer, generator)
    found = [by_search(lines), by_hessian(config, trainer, generator), simple(config, trainer, generator)]
    return [where | row for row in found], [where | row | {"lr": run.lr} for row in lines]


def measure(suite: SuiteConfig, config: LocalConfig) -> pd.DataFrame:
    """`local_noise.csv`, a row a goal and quantity; `line_searches.csv`, a row a search."""
    run = suite.point(suite.run.batch_size, suite.run.lr, suite.run.seed)
    folder = RunRecord(suite.records.with_name(f"{suite.records.name}-local") / run.run_id)
    quantities: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for goal, point in trunk(suite, run, folder).items():
        found, searched = at(config, suite, run, point)
        quantities += [{"goal": goal} | row for row in found]
        lines += [{"goal": goal} | row for row in searched]
        shown = "; ".join(f"{r['quantity']} {r['value']:,.0f} [{r['low']:,.0f}, {r['high']:,.0f}]" for r in found)
        print(f"goal {goal:g}: {shown}", flush=True)
    if not quantities:
        raise UserError(f"batch_size={run.batch_size} lr={run.lr:g}: the run passes no goal; set easier sweep.goals")
    table = pd.DataFrame(quantities)
    write_csv(table, suite.tables / "local_noise.csv")
    write_csv(pd.DataFrame(lines), suite.tables / "line_searches.csv")
    return table
