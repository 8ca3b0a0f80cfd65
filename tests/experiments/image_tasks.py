"""What the tests of the image tasks share."""

from pathlib import Path
from typing import Any

import torch
import yaml

from experiments.tasks import TASKS

CPU = torch.device("cpu")


def build(name: str, seed: int = 0, **fields: Any) -> Any:
    config, task = TASKS[name]
    return task(config(name=name, **fields), seed, CPU)


def from_yaml(name: str) -> Any:
    return TASKS[name][0](**yaml.safe_load(Path(f"configs/task/{name}.yaml").read_text()))


def train(task: Any, steps: int, batch_size: int, lr: float, adam: bool = False) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    parameters = list(task.model.parameters())
    optimizer = torch.optim.Adam(parameters, lr) if adam else torch.optim.SGD(parameters, lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss(task.batch(batch_size, generator))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def gradient(task: Any, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(task.loss(batch), list(task.model.parameters()))])


def mean_of_parts(task: Any, batch: tuple[torch.Tensor, ...], size: int) -> torch.Tensor:
    parts = list(zip(*(tensor.split(size) for tensor in batch), strict=True))
    return torch.stack([gradient(task, part) for part in parts]).mean(0)


def same_weights(a: Any, b: Any) -> bool:
    return all(p.equal(q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))
