"""What an example costs here, timed on a few gradients; nothing is trained."""

import time
from collections.abc import Sequence

import torch

from experiments.config import SuiteConfig
from experiments.search import Point
from experiments.tasks import TASKS


def seconds_per_example(suite: SuiteConfig, points: Sequence[Point]) -> float:
    """Wall seconds of forward and backward an example (in the task's unit), at the largest micro-batch of `points`:
    the fastest of three.
    """
    torch.set_num_threads(suite.threads)
    device = torch.device(suite.device)
    run = suite.point(*max(points))
    _, build = TASKS[run.task.name]
    task = build(run.task, run.seed, device)
    generator = run.stream("cost")
    times = []
    for _ in range(3):
        started = time.perf_counter()
        task.loss(task.batch(run.micro_size // task.sample_size, generator)).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times) / run.micro_size
