"""What CIFAR-10 and the ImageNets share: a residual network on random crops, its error on the images as they are."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.data.image_cache import ImageSet, crop_and_flip, normalise, subset
from experiments.data.prefetch import Prefetch
from experiments.data.sampling import classify, draw, seeded_weights
from experiments.errors import UserError
from experiments.tasks.base import Evaluation, Metric
from experiments.tasks.resnet import Norm, ResNet, norm_layer

RESIDENT = 8 << 30


class Network(NamedTuple):
    """The arguments of `ResNet` and its normalisation."""

    width: int
    blocks: tuple[int, ...]
    stem: int
    bottleneck: bool
    norm: Norm
    ghost_batch: int


class AugmentedTask:
    """Batches are cropped at random after padding by `pad`, and mirrored half the time.

    Train error is on a fixed part of the training images, as they are. A set above `RESIDENT` bytes stays in its file,
    and batches of it are read and cropped in the background.
    """

    unit = "image"
    sample_size = 1
    metric = Metric("train_error", "min")
    model: nn.Module

    def __init__(
        self,
        images: ImageSet,
        classes: int,
        network: Network,
        pad: int,
        eval_examples: int,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        device: torch.device,
    ):
        self.device = device
        resident = images.images.nbytes <= RESIDENT
        self.set = images.to(device) if resident else images
        self.crops = self._crops if resident else Prefetch(self._crops)
        self.pad, self.mean, self.std = pad, mean, std
        self.chunk = network.ghost_batch
        if network.norm == "batch" and eval_examples % network.ghost_batch:
            raise UserError(
                f"task.eval_examples={eval_examples} is not a multiple of task.ghost_batch={network.ghost_batch}\n"
                "allowed: a multiple, since the error too is taken with each ghost batch's own statistics"
            )
        fixed = subset(len(self.set.labels), eval_examples).to(self.set.labels.device)
        self.eval_images = normalise(self.set.images[fixed].to(device), mean, std)
        self.eval_labels = self.set.labels[fixed].to(device)
        with seeded_weights(seed):
            norm = norm_layer(network.norm, network.ghost_batch)
            self.model = ResNet(network.width, network.blocks, classes, network.stem, network.bottleneck, norm).to(
                device
            )

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images (size, 3, resolution, resolution) and labels (size,)."""
        images, labels = self.crops(size, generator)
        return normalise(images.to(self.device), self.mean, self.std), labels.to(self.device)

    def _crops(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """uint8 crops and labels, where the set is."""
        index = draw(len(self.set.labels), size, generator, replacement=True).to(self.set.labels.device)
        return crop_and_flip(self.set.images[index], self.pad, generator), self.set.labels[index]

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(images), labels)

    def evaluate(self) -> Evaluation:
        return Evaluation(*classify(self.model, self.eval_images, self.eval_labels, self.chunk))
