"""A2C, for games as the paper trained it: 5-step rollouts of many environments; policy, value and entropy terms.

**What is independent here.** A sample is one environment's rollout: 5 observations that hang together, weighted as one.
Environments have their own seeds and never meet, but all follow one policy, and each goes on where its last rollout
ended. So *given the weights and where the environments are*, the N gradients of a batch are independent, and they are
taken at the same weights (the advantages are those of the weights that acted); that is what the estimator needs. They
are identically distributed so far as the environments are spread over their episodes (`random_start`): a batch is a
stratified draw from the states that this policy visits, not a fresh one, and successive batches are correlated.
"""

from typing import Any, Literal, get_args

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.tasks.base import Evaluation, Metric
from experiments.tasks.rl import envs as rl_envs
from experiments.tasks.rl.policy import IN_WORDS, Policy
from experiments.tasks.rl.rollout import Returns, Sampler

Name = Literal["cartpole", "pong", "pong_ram", "breakout", "space_invaders", "beam_rider", "alien", "qbert", "seaquest"]
NAMES: tuple[str, ...] = get_args(Name)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RolloutConfig:
    """`env_id` is an ALE game by its ROM's name, or any environment of Gymnasium's with a vector to see and a choice of
    actions.

    `sample_size` is the number of steps of one environment in a rollout. `window` is the number of latest episodes
    whose mean return is the metric, and `floor` the lowest return there is, which stands in until the first episode has
    ended. `network` is for games seen in pixels; vectors get two layers of 64.
    """

    name: str
    env_id: str
    network: Literal["nature", "small", "mlp"] = "nature"
    sample_size: int = Field(default=5, gt=0)
    gamma: float = Field(default=0.99, gt=0, le=1)
    value_weight: float = Field(default=0.5, ge=0)
    entropy_weight: float = Field(default=0.01, ge=0)
    clip_rewards: bool = True
    random_start: int = Field(default=500, ge=0)
    window: int = Field(default=100, gt=0)
    floor: float = 0.0

    @property
    def architecture(self) -> str:
        """The network in words."""
        return IN_WORDS[self.network if rl_envs.is_game(self.env_id) else "mlp"]

    @property
    def frames_per_example(self) -> float | None:
        """Frames of the game that an example stands for; None for what is no game."""
        return float(rl_envs.FRAME_SKIP) if rl_envs.is_game(self.env_id) else None


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class A2CConfig(RolloutConfig):
    """A2C has as many environments as a batch has samples: batch_size / sample_size."""

    name: Name


class A2CTask:
    """One policy and, from the first batch on, its environments."""

    unit = "observation"
    metric = Metric("mean_return", "max")
    probes = False
    on_cpu_only = True

    def __init__(self, config: RolloutConfig, seed: int, device: torch.device) -> None:
        self.config, self.seed = config, seed
        self.sample_size = config.sample_size
        one = self.make_envs(1)
        network = config.network if len(one.obs_shape) == 3 else "mlp"
        self.model = Policy(network, one.obs_shape, one.actions, seed).to(device)
        self.frame_skip = one.frame_skip
        self.returns = Returns(config.window)
        self.sampler: Sampler | None = None
        self.observations = 0
        self.restarts = 0

    @property
    def data(self) -> str:
        """Which environment, and what a frame is."""
        return f"{self.config.env_id}, {self.frame_skip} frames an observation"

    @property
    def frames(self) -> int:
        """Game frames that training has seen."""
        return self.observations * self.frame_skip

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One rollout of `size` environments: observations, actions, returns R and advantages A = R − V(s), each (size,
        5, …).

        Raises:
            ValueError: `size` isn't the number of environments of the first batch.
        """
        sampler = self.environments(size)
        config = self.config
        rollout = sampler.collect(
            self.model, config.sample_size, generator, self.returns, config.gamma, 1.0, config.clip_rewards
        )
        self.observations += size * config.sample_size
        return rollout.obs, rollout.actions, rollout.advantages + rollout.values, rollout.advantages

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Mean over environments and steps of −A log π(a|s) + c_v (R − V(s))² − c_e H(π(·|s)); A is a constant."""
        obs, actions, returns, advantages = (tensor.flatten(0, 1) for tensor in batch)
        chosen, entropy, value = self.judge(obs, actions)
        return (-advantages * chosen + self.regularisers(returns, value, entropy)).mean()

    def judge(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log π(a|s), H(π(·|s)) and V(s), (n,) each."""
        logits, value = self.model(obs)
        log_policy = logits.log_softmax(-1)
        entropy = -(log_policy.exp() * log_policy).sum(-1)
        return log_policy.gather(1, actions[:, None]).squeeze(1), entropy, value

    def regularisers(self, returns: Tensor, value: Tensor, entropy: Tensor) -> Tensor:
        """The terms that A2C and PPO share: c_v (R − V)² − c_e H."""
        return self.config.value_weight * (returns - value).square() - self.config.entropy_weight * entropy

    def evaluate(self) -> Evaluation:
        """Mean return of the latest episodes of training; the loss is minus that, which is what the policy gradient
        descends.
        """
        mean = self.returns.mean(self.config.floor)
        return Evaluation(loss=-mean, metric=mean)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on with; games can't be saved, so its environments start anew, which `restarts`
        counts.
        """
        return {
            "recent": list(self.returns.recent),
            "episodes": self.returns.episodes,
            "observations": self.observations,
            "restarts": self.restarts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.returns.recent.extend(state["recent"])
        self.returns.episodes = state["episodes"]
        self.observations = state["observations"]
        self.restarts = state["restarts"] + 1
        self.sampler = None

    def make_envs(self, count: int) -> rl_envs.Envs:
        """`count` environments of the config's kind."""
        return rl_envs.make(self.config.env_id, count)

    def environments(self, count: int) -> Sampler:
        """The run's `count` environments, started when first asked for."""
        if self.sampler is None:
            rng = np.random.default_rng([self.seed, self.restarts])
            self.sampler = Sampler(self.make_envs(count), self.config.random_start, rng)
        if self.sampler.envs.count != count:
            raise ValueError(
                f"{count} environments asked for where the run has {self.sampler.envs.count}; it keeps them"
            )
        return self.sampler
