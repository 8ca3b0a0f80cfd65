"""What the training loop asks of a task (docs/architecture.md)."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Metric:
    """What goals are values of: `direction` says which way is better."""

    name: str
    direction: Literal["min", "max"]

    def better(self, a: float, b: float) -> bool:
        """Whether `a` is at least as good as `b` (NaN is never good)."""
        return a <= b if self.direction == "min" else a >= b


class Evaluation(NamedTuple):
    """The task's loss and metric on its fixed evaluation set."""

    loss: float
    metric: float


class Task(Protocol):
    """A model, its data and its loss; one module a task family builds it.

    `unit` is what the batch size B counts; `sample_size` is the number of units in one independent sample (20 for a
    20-token sequence whose tokens share a context, 5 for five steps of one environment, else 1); `data` is one line for
    the tables: which data, how many, which subset.
    """

    unit: str
    sample_size: int
    metric: Metric
    data: str
    model: nn.Module

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """`size` independent samples; `size` is the leading dimension of every tensor."""
        ...

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Scalar: the mean over the batch's samples."""
        ...

    def evaluate(self) -> Evaluation:
        """On a fixed set, in evaluation mode, without touching the global random state."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A task that training changes beyond its model (environments, returns): this goes into the checkpoint with it."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers, strings, and lists and dicts of them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
