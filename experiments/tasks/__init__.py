"""The registry of tasks: a name, the dataclass behind `configs/task/<name>.yaml`, and what builds it."""

from collections.abc import Callable
from typing import Any

import torch

from experiments.tasks import digits, quadratic
from experiments.tasks.base import Evaluation, Metric, Task

TASKS: dict[str, tuple[type, Callable[[Any, int, torch.device], Task]]] = {
    "quadratic": (quadratic.QuadraticConfig, quadratic.QuadraticTask),
    "digits": (digits.DigitsConfig, digits.DigitsTask),
}

__all__ = ["TASKS", "Evaluation", "Metric", "Task"]
