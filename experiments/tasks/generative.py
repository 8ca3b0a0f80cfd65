"""Autoencoder and variational autoencoder on SVHN's images (Fig. 9), after InfoGAN's SVHN encoder and decoder.

What the paper leaves open, and what is taken here: pixels in [0, 1] and a sigmoid at the end; no batch normalisation,
which InfoGAN has, since batches start at a single image; the encoder's head is InfoGAN's recognition head (a dense
layer of 2·`width`, then the code); the VAE's loss is the Gaussian negative log-likelihood at a fixed `pixel_std` σ,
scaled and shifted so that it reads as a mean squared error per pixel: loss = MSE + (2 σ²/3072) KL.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from experiments.data.image_cache import subset
from experiments.data.image_sets import SvhnSource, svhn
from experiments.data.sampling import draw, seeded_weights
from experiments.tasks.base import Evaluation, Metric
from experiments.tasks.svhn import SOURCES

PIXELS = 3 * 32 * 32
EVAL_CHUNK = 250
FORMAT = torch.channels_last  # the quicker one for these convolutions, by a tenth in pieces of 16


def encoder(width: int, outputs: int) -> nn.Sequential:
    """(n, 3, 32, 32) → (n, outputs): 4×4 convolutions of stride 2 to `width`·(1, 2, 4), then two dense layers."""
    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.Linear(4 * width * 16, 2 * width),
        nn.LeakyReLU(0.1),
        nn.Linear(2 * width, outputs),
    )


def decoder(width: int, latent: int) -> nn.Sequential:
    """(n, latent) → (n, 3, 32, 32) in (0, 1): dense to 2×2 of 7·`width`, then four 4×4 up-convolutions of stride 2."""
    return nn.Sequential(
        nn.Linear(latent, 7 * width * 4),
        nn.ReLU(),
        nn.Unflatten(1, (7 * width, 2, 2)),
        nn.ConvTranspose2d(7 * width, 4 * width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


def in_words(width: int, latent: int) -> str:
    """Encoder and decoder of these sizes, and InfoGAN's where they are others."""
    ours = f"three convolutions from {width} channels to a code of {latent}, four from there to the image"
    return ours if (width, latent) == (64, 128) else f"{ours} (InfoGAN's: from 64 channels; a code of 128)"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AutoencoderConfig:
    """`width` 64 and `latent` 128 are InfoGAN's, `source` train+extra the paper's."""

    name: Literal["svhn_autoencoder"]
    source: SvhnSource = "train+extra"
    width: Annotated[int, Field(gt=0)] = 64
    latent: Annotated[int, Field(gt=0)] = 128
    eval_examples: Annotated[int, Field(gt=0)] = 1000

    @property
    def architecture(self) -> str:
        """The network in words."""
        return in_words(self.width, self.latent)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class VaeConfig:
    """As the autoencoder's; `pixel_std` is σ of the Gaussian that a pixel is drawn from, and weighs the KL term."""

    name: Literal["svhn_vae"]
    source: SvhnSource = "train+extra"
    width: Annotated[int, Field(gt=0)] = 64
    latent: Annotated[int, Field(gt=0)] = 128
    pixel_std: Annotated[float, Field(gt=0)] = 0.1
    eval_examples: Annotated[int, Field(gt=0)] = 1000

    @property
    def architecture(self) -> str:
        """The network in words."""
        return in_words(self.width, self.latent)


class _Images:
    """The images in [0, 1], and a fixed part of them to evaluate on."""

    unit = "image"
    sample_size = 1
    data: str

    def __init__(self, config: AutoencoderConfig | VaeConfig, device: torch.device):
        self.images = svhn(config.source).images.to(device)
        self.fixed = self.images[subset(len(self.images), config.eval_examples).to(device)].float() / 255
        self.data = f"SVHN, {SOURCES[config.source]}, without labels; loss on {config.eval_examples:,} of them"

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        index = draw(len(self.images), size, generator, replacement=True).to(self.images.device)
        return self.images[index].float() / 255


class AutoencoderTask(_Images):
    """Metric and loss: mean squared error per pixel, of the range [0, 1]; the metric on a fixed part of the images."""

    metric = Metric("mse", "min")

    def __init__(self, config: AutoencoderConfig, seed: int, device: torch.device):
        super().__init__(config, device)
        with seeded_weights(seed):
            parts = encoder(config.width, config.latent), decoder(config.width, config.latent)
            self.model = nn.Sequential(*parts).to(device, memory_format=FORMAT)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor]:
        """Images (size, 3, 32, 32) in [0, 1]."""
        return (self.draw(size, generator),)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        (images,) = batch
        return F.mse_loss(self.model(images), images)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        chunks = self.fixed.split(EVAL_CHUNK)
        total = sum(self.loss((images,)).item() * len(images) for images in chunks)
        return Evaluation(loss=total / len(self.fixed), metric=total / len(self.fixed))


class VaeTask(_Images):
    """Metric and loss: MSE + (2 σ²/3072) KL. The code's noise is part of the batch; for the metric it is fixed."""

    metric = Metric("vae_loss", "min")

    def __init__(self, config: VaeConfig, seed: int, device: torch.device):
        super().__init__(config, device)
        self.latent = config.latent
        self.kl_weight = 2 * config.pixel_std**2 / PIXELS
        noise = torch.randn(len(self.fixed), config.latent, generator=torch.Generator().manual_seed(0))
        self.fixed_noise = noise.to(device)
        with seeded_weights(seed):
            parts = encoder(config.width, 2 * config.latent), decoder(config.width, config.latent)
            self.model = nn.ModuleList(parts).to(device, memory_format=FORMAT)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images (size, 3, 32, 32) in [0, 1], and the code's noise (size, latent)."""
        images = self.draw(size, generator)
        noise = torch.randn(size, self.latent, generator=generator, device=generator.device)
        return images, noise.to(images.device)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images, noise = batch
        encode, decode = self.model
        mean, log_var = encode(images).chunk(2, dim=1)
        code = mean + (log_var / 2).exp() * noise
        kl = (mean**2 + log_var.exp() - 1 - log_var).sum(1).mean() / 2
        return F.mse_loss(decode(code), images) + self.kl_weight * kl

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        chunks = zip(self.fixed.split(EVAL_CHUNK), self.fixed_noise.split(EVAL_CHUNK), strict=True)
        total = sum(self.loss(chunk).item() * len(chunk[0]) for chunk in chunks)
        return Evaluation(loss=total / len(self.fixed), metric=total / len(self.fixed))
