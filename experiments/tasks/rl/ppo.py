"""PPO beside A2C, under the same measurement (Schulman 2017, arXiv 1707.06347).

**What an example is.** An observation in a gradient step. A rollout of `minibatches` × B observations is gone through
`epochs` times in minibatches of B, so every observation counts as `epochs` examples, and the environments have made
examples / `epochs` observations: divide E by `epochs` for the cost in frames. S counts optimizer steps as everywhere.

**What is independent.** As in A2C a sample is one environment's rollout, and a minibatch holds whole environments, so
the gradients of its parts are those of independent samples at the same weights. From the second minibatch on they are
gradients of the clipped surrogate at weights that have moved away from those that acted, and an epoch draws without
replacement from a finite set of environments; the noise scale is of that loss, on that draw. Advantages are normalised
once per rollout, not per minibatch, which would couple the samples.
"""

from typing import Literal, get_args

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.tasks.rl.a2c import A2CTask, RolloutConfig

Name = Literal["cartpole_ppo", "pong_ppo"]
NAMES: tuple[str, ...] = get_args(Name)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PPOConfig(RolloutConfig):
    """`minibatches` × batch_size / sample_size environments; `ratio_clip` bounds π/π_old, `lam` is λ of the generalised
    advantages.
    """

    name: Name
    sample_size: int = Field(default=32, gt=0)
    epochs: int = Field(default=4, gt=0)
    minibatches: int = Field(default=4, gt=0)
    ratio_clip: float = Field(default=0.2, gt=0)
    lam: float = Field(default=0.95, ge=0, le=1)

    @property
    def frames_per_example(self) -> float | None:
        """As A2C's, by `epochs` examples an observation."""
        frames = super().frames_per_example
        return None if frames is None else frames / self.epochs


class PPOTask(A2CTask):
    """Each batch is the next minibatch of the rollout; when that is used up, the environments go on."""

    def __init__(self, config: PPOConfig, seed: int, device: torch.device) -> None:
        super().__init__(config, seed, device)
        self.ppo = config
        self.rollout: tuple[Tensor, ...] = ()
        self.queue: list[Tensor] = []

    @property
    def data(self) -> str:
        """As A2C's, and how often an observation is used."""
        return f"{super().data}; each observation is {self.ppo.epochs} examples"

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The next `size` environments' observations, actions, returns, advantages and log π_old(a|s), each (size, T,
        …).
        """
        config = self.ppo
        if not self.queue:
            count = size * config.minibatches
            sampler = self.environments(count)
            found = sampler.collect(
                self.model, config.sample_size, generator, self.returns, config.gamma, config.lam, config.clip_rewards
            )
            self.observations += count * config.sample_size
            scaled = (found.advantages - found.advantages.mean()) / (found.advantages.std() + 1e-8)
            self.rollout = (found.obs, found.actions, found.advantages + found.values, scaled, found.log_probs)
            orders = [torch.randperm(count, generator=generator) for _ in range(config.epochs)]
            self.queue = [chosen for order in orders for chosen in order.split(size)]
        chosen = self.queue.pop(0)
        return tuple(tensor[chosen] for tensor in self.rollout)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Mean of −min(ρA, clip(ρ, 1 ± c) A) + c_v (R − V(s))² − c_e H(π(·|s)), where ρ = π/π_old (eq. 7 and 9)."""
        obs, actions, returns, advantages, old = (tensor.flatten(0, 1) for tensor in batch)
        chosen, entropy, value = self.judge(obs, actions)
        ratio, clip = (chosen - old).exp(), self.ppo.ratio_clip
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        return (-surrogate + self.regularisers(returns, value, entropy)).mean()
