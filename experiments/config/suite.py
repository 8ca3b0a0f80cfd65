"""A sweep of runs: which there are, where they are trained, and where its files lie."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from experiments.config.run import Count, Positive, RunConfig, frozen


@frozen
class SweepConfig:
    """Batch sizes, each with a learning-rate grid lr·(1 + noise/B)^-alpha · ratio^j, j = −points//2 … points//2,
    widened by up to `widen` points a side while the best lies on an edge. A run has at most
    `steps_budget` · (1 + budget_noise/B) steps, with `noise` for `budget_noise` where that is null.
    """

    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)]
    seeds: Count
    goals: Annotated[tuple[float, ...], Field(min_length=1)]
    lr: Positive
    noise: Positive
    alpha: Annotated[float, Field(ge=0, le=1)]
    ratio: Annotated[float, Field(gt=1)]
    points: Count
    widen: Annotated[int, Field(ge=0)]
    steps_budget: Positive
    budget_noise: Positive | None


@frozen
class ClusterConfig:
    """Where runs go. Short ones share a job until it holds about `job_seconds` of work. A run that takes longer than
    `run_seconds` counts as failed. `workers` belongs to local and Ray, `gpus` to Slurm (a job) and Ray (a run), the
    rest to Slurm, where null means what the cluster says.
    """

    name: Literal["local", "slurm", "ray"]
    workers: Count | None
    job_seconds: Positive
    run_seconds: Positive | None = None
    partition: str | None = None
    account: str | None = None
    minutes: Count | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    cpus: Count | None = None
    memory_gb: Count | None = None
    parallel: Count | None = None


@frozen
class SuiteConfig:
    """The composed config of one sweep, and where its files are."""

    preset: str
    run: RunConfig
    sweep: SweepConfig
    cluster: ClusterConfig
    points: tuple[tuple[Count, Positive, Annotated[int, Field(ge=0)]], ...] | None
    device: str
    threads: Count
    results: Annotated[str, Field(min_length=1)]
    runs: Annotated[str, Field(min_length=1)]
    reference: Annotated[str, Field(min_length=1)]
    from_reference: bool
    dry: bool
    checkpoint_seconds: Positive
    experiment: str | None = None

    @property
    def name(self) -> str:
        """Of the sweep, and of its folder in `results`."""
        return f"{self.run.task.name}-{self.preset}"

    @property
    def tables(self) -> Path:
        """The folder of its tables."""
        return Path(self.results) / self.name

    @property
    def reference_tables(self) -> Path:
        """The folder of the reference's tables, which may not be there."""
        return Path(self.reference) / self.name

    @property
    def records(self) -> Path:
        """The folder of the runs' records."""
        return Path(self.runs) / self.name

    def point(self, batch_size: int, lr: float, seed: int) -> RunConfig:
        """The run of the sweep at this batch size, learning rate and seed."""
        noise = self.sweep.budget_noise or self.sweep.noise
        steps = math.ceil(self.sweep.steps_budget * (1 + noise / batch_size))
        return replace(self.run, batch_size=batch_size, lr=lr, seed=seed, max_steps=steps)
