"""ImageNet and its small relatives with a ResNet sized to them (Fig. 10)."""

from typing import Annotated, Literal

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from experiments.data.image_sets import ImagenetSource, imagenet
from experiments.tasks.augmented import AugmentedTask, Network
from experiments.tasks.resnet import Count, Norm, Stages, in_words

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ImagenetConfig:
    """The first `classes` classes of `source`, `images_per_class` of each (null: all), at `resolution`.

    The defaults are ResNet-50 on ImageNet, the paper's. `pad` is what a random crop is padded by.
    """

    name: Literal["imagenet", "imagenette"]
    source: ImagenetSource = "imagenet"
    classes: Count = 1000
    images_per_class: Count | None = None
    resolution: Count = 224
    pad: Annotated[int, Field(ge=0)] = 28
    width: Count = 64
    blocks: Stages = (3, 4, 6, 3)
    bottleneck: bool = True
    stem: Literal[1, 2, 4] = 4
    norm: Norm = "batch"
    ghost_batch: Count = 32
    eval_examples: Count = 8192

    @property
    def architecture(self) -> str:
        """The network in words."""
        paper = "ResNet-50 of 64 channels, stem of stride 4"
        return in_words(self.width, self.blocks, self.stem, self.bottleneck, self.norm, self.ghost_batch, paper)


class ImagenetTask(AugmentedTask):
    def __init__(self, config: ImagenetConfig, seed: int, device: torch.device):
        images = imagenet(config.source, config.resolution, config.classes, config.images_per_class)
        network = Network(config.width, config.blocks, config.stem, config.bottleneck, config.norm, config.ghost_batch)
        super().__init__(images, config.classes, network, config.pad, config.eval_examples, MEAN, STD, seed, device)
        self.data = (
            f"{config.source}, first {config.classes} classes at {config.resolution} pixels, "
            f"{len(images.labels):,} training images, cropped and mirrored; "
            f"error on {config.eval_examples:,} of them as they are"
        )
