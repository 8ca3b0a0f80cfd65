"""scikit-learn's 1,797 digits of 8 x 8 pixels and a small convolutional network: the smallest real task.

It needs no download and a tuned sweep of it takes minutes; B_crit rises from tens to hundreds as the error falls.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from experiments.data.sampling import classify, draw, seeded_weights
from experiments.tasks.base import Evaluation, Metric

TRAIN = 1500
EVAL_CHUNK = 250


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class DigitsConfig:
    """`channels` of the two convolutions; `replacement` says whether a batch may hold an image twice."""

    name: Literal["digits"]
    channels: tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] = (16, 32)
    replacement: bool = True

    @property
    def dataset_size(self) -> int:
        return TRAIN

    @property
    def architecture(self) -> str:
        """The network in words."""
        return f"two convolutions of {self.channels[0]} and {self.channels[1]} channels and a dense layer"


class DigitsTask:
    """Train error on the first 1,500 images (the last 297 are left for testing)."""

    unit = "image"
    sample_size = 1
    metric = Metric("train_error", "min")
    data = f"scikit-learn digits, first {TRAIN:,} of 1,797 images; error on the same {TRAIN:,}"

    def __init__(self, config: DigitsConfig, seed: int, device: torch.device):
        from sklearn.datasets import load_digits  # takes a second, which every other task's commands would pay

        pixels, labels = load_digits(return_X_y=True)
        images = torch.from_numpy(pixels[:TRAIN]).view(-1, 1, 8, 8).to(device, torch.float32)
        self.images = images / 8 - 1
        self.labels = torch.from_numpy(labels[:TRAIN]).to(device)
        self.replacement = config.replacement
        first, second = config.channels
        with seeded_weights(seed):
            self.model = nn.Sequential(
                nn.Conv2d(1, first, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.Conv2d(first, second, 3, padding=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(second * 16, 10),
            ).to(device)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images (size, 1, 8, 8) scaled to [-1, 1], and labels (size,)."""
        index = draw(TRAIN, size, generator, self.replacement).to(self.labels.device)
        return self.images[index], self.labels[index]

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(images), labels)

    def evaluate(self) -> Evaluation:
        return Evaluation(*classify(self.model, self.images, self.labels, EVAL_CHUNK))
