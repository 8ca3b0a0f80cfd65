"""The two classes that Hydra insists on finding under `hydra_plugins`: the sweeper, and the launcher for this
machine.
"""

import os
from collections.abc import Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from experiments.config import parse
from experiments.pool import Pool
from experiments.search import Point
from experiments.sweep import run_sweep


class BatchSizeSearch(Sweeper):
    """The learning-rate search over batch sizes, through whichever launcher is configured. A job is a share of the
    runs, `points=[[B,lr,seed],…]`.
    """

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, task_function=task_function, hydra_context=hydra_context
        )

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None
        launcher, jobs = self.launcher, 0

        def launch(shares: list[list[Point]]) -> None:
            nonlocal jobs
            overrides = [[*arguments, f"points={_text(share)}"] for share in shares]
            launcher.launch(overrides, initial_job_idx=jobs)
            jobs += len(shares)

        run_sweep(parse(self.config), launch)


def _text(share: Sequence[Point]) -> str:
    return "[" + ",".join(f"[{p.batch_size},{p.lr!r},{p.seed}]" for p in share) + "]"


class LocalPool(Launcher):
    """As many single-thread processes as there are cores, or `workers`."""

    def __init__(self, workers: int | None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        setup_globals()
        self.pool = Pool(self.workers, hydra_context, config, task_function)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        returns = self.pool.run({initial_job_idx + i: list(overrides) for i, overrides in enumerate(job_overrides)})
        return [returns[i] for i in sorted(returns)]
