"""CIFAR-10 and a ResNet-32 (Fig. 14)."""

from typing import Literal

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from experiments.data.image_sets import cifar10
from experiments.tasks.augmented import AugmentedTask, Network
from experiments.tasks.resnet import Count, Norm, Stages, in_words

MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.244, 0.262)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CifarConfig:
    """The defaults are ResNet-32, the paper's; batch normalisation is over `ghost_batch` images."""

    name: Literal["cifar10"]
    width: Count = 16
    blocks: Stages = (5, 5, 5)
    stem: Literal[1, 2] = 1
    norm: Norm = "batch"
    ghost_batch: Count = 32
    eval_examples: Count = 4096

    @property
    def architecture(self) -> str:
        """The network in words."""
        paper = "ResNet-32 of 16 channels, stem of stride 1"
        return in_words(self.width, self.blocks, self.stem, False, self.norm, self.ghost_batch, paper)


class CifarTask(AugmentedTask):
    def __init__(self, config: CifarConfig, seed: int, device: torch.device):
        network = Network(config.width, config.blocks, config.stem, False, config.norm, config.ghost_batch)
        super().__init__(cifar10(), 10, network, 4, config.eval_examples, MEAN, STD, seed, device)
        self.data = (
            "CIFAR-10, train split, 50,000 images, cropped and mirrored; "
            f"error on {config.eval_examples:,} of them as they are"
        )
