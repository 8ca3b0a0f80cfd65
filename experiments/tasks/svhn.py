"""SVHN and the paper's CNN: one task, swept with SGD as `svhn` and with Adam as `svhn_adam` (Figs 5–7, 14)."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.data.image_cache import normalise, subset
from experiments.data.image_sets import SvhnSource, svhn
from experiments.data.sampling import classify, draw, seeded_weights
from experiments.tasks.base import Evaluation, Metric
from experiments.tasks.cnn import PaperCNN, StridedCNN, dropout_mask, in_words

MEAN, STD = (0.438, 0.444, 0.473), (0.198, 0.201, 0.197)
EVAL_CHUNK = 250
SOURCES = {
    "test-10k": "8,000 of the first 10,000 crops of its test split",
    "train": "train split, 73,257 crops",
    "train+extra": "train and extra splits, 604,388 crops (the paper's)",
}


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SvhnConfig:
    """`width` 32 and `source` train+extra are the paper's; train error is taken on `eval_examples` training images.

    `stride` puts stride-2 convolutions in place of the network's pooling, which is cheaper.
    """

    name: Literal["svhn", "svhn_adam"]
    source: SvhnSource = "train+extra"
    width: Annotated[int, Field(gt=0)] = 32
    stride: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.4
    eval_examples: Annotated[int, Field(gt=0)] = 4000

    @property
    def architecture(self) -> str:
        """The network in words."""
        return in_words(self.width, self.stride)


class SvhnTask:
    """Train error without dropout on a fixed part of the training images. The dropout mask is part of the batch."""

    unit = "image"
    sample_size = 1
    metric = Metric("train_error", "min")

    def __init__(self, config: SvhnConfig, seed: int, device: torch.device):
        self.set = svhn(config.source).to(device)
        self.dropout = config.dropout
        fixed = subset(len(self.set.labels), config.eval_examples).to(device)
        self.eval_images = normalise(self.set.images[fixed], MEAN, STD)
        self.eval_labels = self.set.labels[fixed]
        with seeded_weights(seed):
            self.model = (StridedCNN if config.stride else PaperCNN)(3, 32, 10, config.width).to(device)
        self.data = f"SVHN, {SOURCES[config.source]}; error on {config.eval_examples:,} of them"

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Images (size, 3, 32, 32), labels (size,), dropout mask (size, 32·width)."""
        index = draw(len(self.set.labels), size, generator, replacement=True).to(self.set.labels.device)
        keep = dropout_mask(size, self.model.hidden, self.dropout, generator).to(self.set.labels.device)
        return normalise(self.set.images[index], MEAN, STD), self.set.labels[index], keep

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images, labels, keep = batch
        return F.cross_entropy(self.model(images, keep), labels)

    def evaluate(self) -> Evaluation:
        return Evaluation(*classify(self.model, self.eval_images, self.eval_labels, EVAL_CHUNK))
