"""The registry of tasks: a name, the dataclass behind `configs/task/<name>.yaml`, and what builds it. One module here
is one family of tasks; data sets belong to `data`, the loop that trains them to `training`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import TypeAdapter

from experiments.tasks import cifar, digits, generative, imagenet, lm, mnist, quadratic, svhn
from experiments.tasks.base import Evaluation, Metric, Task
from experiments.tasks.rl import a2c, ppo, selfplay

TASKS: dict[str, tuple[type, Callable[[Any, int, torch.device], Task]]] = {
    "quadratic": (quadratic.QuadraticConfig, quadratic.QuadraticTask),
    "digits": (digits.DigitsConfig, digits.DigitsTask),
    **dict.fromkeys(("mnist", "mnist5k"), (mnist.MnistConfig, mnist.MnistTask)),
    "svhn": (svhn.SvhnConfig, svhn.SvhnTask),
    "svhn_adam": (svhn.SvhnConfig, svhn.SvhnTask),
    "cifar10": (cifar.CifarConfig, cifar.CifarTask),
    "imagenet": (imagenet.ImagenetConfig, imagenet.ImagenetTask),
    "imagenette": (imagenet.ImagenetConfig, imagenet.ImagenetTask),
    "svhn_autoencoder": (generative.AutoencoderConfig, generative.AutoencoderTask),
    "svhn_vae": (generative.VaeConfig, generative.VaeTask),
    **dict.fromkeys(("lm", "lm_narrow", "lm_wide", "lm_lm1b"), (lm.LmConfig, lm.LmTask)),
    "lm_transformer": (lm.LmTransformerConfig, lm.LmTask),
    **dict.fromkeys(a2c.NAMES, (a2c.A2CConfig, a2c.A2CTask)),
    **dict.fromkeys(ppo.NAMES, (ppo.PPOConfig, ppo.PPOTask)),
    **dict.fromkeys(selfplay.NAMES, (selfplay.SelfPlayConfig, selfplay.SelfPlayTask)),
}


def describe(config: Mapping[str, Any]) -> str:
    """The network in words, and the paper's where it is another, of a run whose config has this `task`; empty for what
    has none (the quadratic). For tables, whose `data` says on which examples."""
    return getattr(_parsed(config), "architecture", "")


def frames_per_example(config: Mapping[str, Any]) -> float | None:
    """Frames of the game that an example stands for, of a run whose config has this `task`; None where that is no
    game. Frames to a goal are this times E."""
    return getattr(_parsed(config), "frames_per_example", None)


def _parsed(config: Mapping[str, Any]) -> Any:
    return TypeAdapter(TASKS[config["name"]][0]).validate_python(config)


__all__ = ["TASKS", "Evaluation", "Metric", "Task", "describe", "frames_per_example"]
