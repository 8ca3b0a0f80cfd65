"""Checks across fields, before anything trains: batch sizes, data, goals, device."""

from itertools import pairwise

import torch

from experiments.config.run import RunConfig
from experiments.config.suite import SuiteConfig
from experiments.errors import UserError
from experiments.tasks import TASKS


def check(suite: SuiteConfig) -> None:
    """What no single field can know."""
    run, sweep = suite.run, suite.sweep
    _, build = TASKS[run.task.name]
    metric, unit = build.metric, build.unit  # type: ignore[attr-defined]
    sample = getattr(run.task, "sample_size", None) or build.sample_size  # type: ignore[attr-defined]
    try:
        device = torch.device(suite.device)
    except RuntimeError:
        raise UserError(f"device={suite.device}: no such device; allowed: cpu, cuda, cuda:0, …") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={suite.device}: PyTorch sees no GPU here; allowed: cpu")
    if device.type != "cpu" and getattr(build, "on_cpu_only", False):
        raise UserError(f"device={suite.device}: the games of {run.task.name} are played on the CPU; allowed: cpu")
    if len(set(sweep.batch_sizes)) < len(sweep.batch_sizes):
        raise UserError(f"sweep.batch_sizes={list(sweep.batch_sizes)}: a batch size stands there twice")
    if sweep.points % 2 == 0:
        raise UserError(f"sweep.points={sweep.points}: allowed: an odd number, one and as many on each side of it")
    sizes = {*sweep.batch_sizes, run.batch_size, *(point[0] for point in suite.points or ())}
    for size in sorted(sizes):
        if size % min(run.micro_batch, size):
            raise UserError(
                f"micro_batch={run.micro_batch} does not divide batch_size={size}; "
                "allowed: a divisor of every batch size above it"
            )
        if size % sample or min(run.micro_batch, size) % sample:
            raise UserError(
                f"batch_size={size}, micro_batch={run.micro_batch}: {run.task.name} counts {unit}s, "
                f"{sample} to a sample; allowed: multiples of {sample}"
            )
    _check_ghost_batches(run, sizes)
    without, limit = not getattr(run.task, "replacement", True), getattr(run.task, "dataset_size", None)
    if without and limit is not None and max(sizes) > limit:
        raise UserError(
            f"batch_size={max(sizes)} is larger than the data ({limit} {unit}s) without replacement; "
            "allowed: task.replacement=true or smaller batches"
        )
    if without and limit is not None and run.measure.probe_examples > limit:
        raise UserError(
            f"measure.probe_examples={run.measure.probe_examples} is larger than the data ({limit} {unit}s) without "
            f"replacement; allowed: task.replacement=true or at most {limit}"
        )
    for key, values in (("sweep.goals", sweep.goals), ("lr_cuts", run.lr_cuts or ())):
        for easy, hard in pairwise(values):
            if not metric.better(hard, easy) or hard == easy:
                way = "falling" if metric.direction == "min" else "rising"
                raise UserError(f"{key}={list(values)}: {hard:g} after {easy:g}; {metric.name} goals must be {way}")
    floor = getattr(run.task, "floor", None)
    if floor is not None and metric.better(floor, sweep.goals[0]):
        raise UserError(
            f"task.floor={floor:g}, the {metric.name} until an episode has ended, already meets the goal "
            f"{sweep.goals[0]:g}; allowed: below {sweep.goals[0]:g}, best the lowest return of {run.task.env_id}"
        )
    if run.stop_metric is not None and not metric.better(run.stop_metric, sweep.goals[-1]):
        raise UserError(
            f"stop_metric={run.stop_metric:g} would end runs before the last goal {sweep.goals[-1]:g}; "
            f"allowed: {'at most' if metric.direction == 'min' else 'at least'} {sweep.goals[-1]:g}, or null"
        )
    parts, examples = run.measure.probe_parts, run.measure.probe_examples
    if examples % (parts * sample):
        raise UserError(
            f"measure.probe_parts={parts} does not divide measure.probe_examples={examples} into samples of {sample}; "
            f"allowed: multiples of {parts * sample} examples"
        )


def _check_ghost_batches(run: RunConfig, sizes: set[int]) -> None:
    """Batch normalisation sees whole ghost batches, whatever a batch is cut into; else cutting would change the run."""
    if getattr(run.task, "norm", None) != "batch":
        return
    ghost, probed = run.task.ghost_batch, run.measure.probe_examples // run.measure.probe_parts
    pieces = [("batch_size", size) for size in sorted(sizes)]
    pieces += [("micro_batch", run.micro_batch)] if run.micro_batch < max(sizes) else []
    for key, size in [*pieces, ("measure.probe_examples / measure.probe_parts", probed)]:
        if size % ghost:
            raise UserError(
                f"{key}={size} cannot be cut into ghost batches of task.ghost_batch={ghost}; "
                f"allowed: multiples of {ghost}, or task.norm=group"
            )
