"""What tasks with a data set in memory share: drawing batches, seeding weights, the error on a fixed set."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.errors import UserError


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Modules built inside get weights that depend on `seed` alone; the global random state comes back untouched.

    Only the CPU's generator is seeded, so build on the CPU and move: every device then starts from the same weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def draw(population: int, size: int, generator: torch.Generator, replacement: bool) -> Tensor:
    """(size,) indices below `population`, on the generator's device; without replacement they are distinct.

    Every batch is drawn afresh: "without replacement" holds within a batch, not over an epoch.
    """
    if replacement:
        return torch.randint(population, (size,), generator=generator, device=generator.device)
    if size > population:
        raise UserError(
            f"a batch of {size} cannot be drawn without replacement from {population} examples; "
            "set task.replacement=true or a smaller batch"
        )
    return torch.randperm(population, generator=generator, device=generator.device)[:size]


@torch.no_grad()
def classify(model: nn.Module, inputs: Tensor, labels: Tensor, chunk: int) -> tuple[float, float]:
    """(mean cross-entropy, share of wrong answers), `chunk` examples at a time (a size that stays in the cache)."""
    loss = torch.zeros((), dtype=torch.float64, device=labels.device)
    wrong = torch.zeros((), dtype=torch.int64, device=labels.device)
    for x, y in zip(inputs.split(chunk), labels.split(chunk), strict=True):
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum")
        wrong += (logits.argmax(1) != y).sum()
    return loss.item() / len(labels), wrong.item() / len(labels)
