"""What a run costs here, timed on a few gradients; nothing is trained."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from experiments.config import RunConfig, SuiteConfig
from experiments.sweep.search import Point
from experiments.tasks import TASKS


class Price(NamedTuple):
    """Wall seconds of a forward and backward pass on b examples: `per_pass` + b · `per_example`."""

    per_pass: float
    per_example: float

    def of(self, run: RunConfig) -> float:
        """Seconds, at most: the whole budget of steps, with probes, without evaluations."""
        parts = run.batch_size // run.micro_size
        step = parts * self.per_pass + run.batch_size * self.per_example
        return run.max_steps * step * (1 + run.measure.probe_share)


def price(suite: SuiteConfig, points: Sequence[Point]) -> Price:
    """Timed at the smallest and the largest micro-batch of `points`, the fastest of three each."""
    torch.set_num_threads(suite.threads)
    runs = [suite.point(*point) for point in (min(points), max(points))]
    device = torch.device(suite.device)
    run = runs[0]
    generator = run.stream("cost")

    def seconds(size: int) -> float:
        task = TASKS[run.task.name][1](run.task, run.seed, device)  # of its own: environments are of one batch size
        times = []
        for _ in range(3):
            started = time.perf_counter()
            task.loss(task.batch(size // task.sample_size, generator)).backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - started)
        return min(times)

    small, large = runs[0].micro_size, runs[1].micro_size
    least, most = seconds(small), seconds(large)
    per_example = max(most - least, 0.0) / (large - small) if large > small else most / large
    return Price(max(least - small * per_example, 0.0), per_example)
