"""Policies with a value: action logits and V(s) from one trunk, initial weights from a seed alone."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from experiments.data.image_cache import channels_last

Network = Literal["nature", "small", "mlp"]
IN_WORDS: dict[Network, str] = {
    "nature": "DQN's network of 2015: three convolutions of 32, 64 and 64 channels, 512 dense units",
    "small": "DQN's network of 2013: two convolutions of 16 and 32 channels, 256 dense units",
    "mlp": "two layers of 64 tanh units",
}


class Policy(nn.Module):
    """`forward(obs)`: logits (n, actions) and values (n,) of n observations.

    `nature` is DQN's network of 2015 (32 8×8/4, 64 4×4/2, 64 3×3 filters, 512 units), `small` that of 2013 (16 8×8/4,
    32 4×4/2, 256 units); both take grey levels 0…255 of shape (n, frames, 84, 84). `mlp` is two layers of 64 tanh units
    on a vector. Weights are orthogonal, of gain √2 in the trunk, .01 in the policy's head (which therefore begins near
    uniform) and 1 in the value's.
    """

    def __init__(self, network: Network, obs_shape: tuple[int, ...], actions: int, seed: int) -> None:
        super().__init__()
        self.pixels = network != "mlp"
        match network:
            case "nature":
                convs = [nn.Conv2d(obs_shape[0], 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
                layers = [*convs, nn.Linear(64 * 7 * 7, 512)]
            case "small":
                layers = [nn.Conv2d(obs_shape[0], 16, 8, 4), nn.Conv2d(16, 32, 4, 2), nn.Linear(32 * 9 * 9, 256)]
            case "mlp":
                layers = [nn.Linear(obs_shape[0], 64), nn.Linear(64, 64)]
        trunk: list[nn.Module] = []
        for i, layer in enumerate(layers):
            if i > 0 and isinstance(layer, nn.Linear) and isinstance(layers[i - 1], nn.Conv2d):
                trunk.append(nn.Flatten())
            trunk += [layer, nn.ReLU() if self.pixels else nn.Tanh()]
        self.trunk = nn.Sequential(*trunk)
        self.logits = nn.Linear(layers[-1].out_features, actions)
        self.value = nn.Linear(layers[-1].out_features, 1)
        generator = torch.Generator().manual_seed(seed)
        for layer in layers:
            nn.init.orthogonal_(layer.weight, math.sqrt(2), generator=generator)
        nn.init.orthogonal_(self.logits.weight, 0.01, generator=generator)
        nn.init.orthogonal_(self.value.weight, 1.0, generator=generator)
        for layer in (*layers, self.logits, self.value):
            nn.init.zeros_(layer.bias)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        if self.pixels:
            obs = channels_last(obs.float() / 255)
        features = self.trunk(obs)
        return self.logits(features), self.value(features).squeeze(-1)
