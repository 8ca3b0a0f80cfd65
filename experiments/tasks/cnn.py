"""The paper's convolutional network for MNIST and SVHN, at any width, and its dropout as part of the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PaperCNN(nn.Module):
    """Two 5×5 convolutions of `width` and 2·`width` channels with 2×2 max pooling, a dense layer of 32·`width`.

    `width` = 32 is the paper's network: 32 and 64 channels, 1024 dense units.
    """

    def __init__(self, channels: int, side: int, classes: int, width: int):
        super().__init__()
        self.hidden = 32 * width
        self.conv1 = nn.Conv2d(channels, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, 2 * width, 5, padding=2)
        self.dense = nn.Linear(2 * width * (side // 4) ** 2, self.hidden)
        self.output = nn.Linear(self.hidden, classes)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Logits (n, classes) of images (n, channels, side, side); `keep` (n, hidden) multiplies the dense layer."""
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.dense(x.flatten(1)))
        return self.output(x if keep is None else x * keep)


class StridedCNN(PaperCNN):
    """The same layers, each convolution with stride 2 and no pooling."""

    def __init__(self, channels: int, side: int, classes: int, width: int):
        super().__init__(channels, side, classes, width)
        self.conv1.stride = self.conv2.stride = (2, 2)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(images))))
        x = F.relu(self.dense(x.flatten(1)))
        return self.output(x if keep is None else x * keep)


def in_words(width: int, stride: bool) -> str:
    """The network of this width, with stride or with pooling, and the paper's where it is another."""
    size = f"convolutions of {width} and {2 * width} channels, {32 * width:,} dense units"
    reduced = f"CNN, {size}, {'stride 2' if stride else 'pooling'}"
    return reduced if width == 32 and not stride else f"{reduced} (the paper's: 32 and 64, 1,024, pooling)"


def dropout_mask(size: int, units: int, rate: float, generator: torch.Generator) -> Tensor:
    """(size, units) on the generator's device: 0 with probability `rate`, else 1/(1 − `rate`).

    Drawn with the batch, so that cutting the batch or measuring on other examples changes no gradient.
    """
    drawn = torch.rand(size, units, generator=generator, device=generator.device)
    return (drawn >= rate).float().div_(1 - rate)
