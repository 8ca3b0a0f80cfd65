"""Experience: a few steps of every environment under the current policy, and the advantages that follow from them."""

from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.tasks.rl.envs import Envs
from experiments.tasks.rl.policy import Policy


class Rollout(NamedTuple):
    """T steps of N environments, each (N, T, …); log-probabilities and values are those of the weights that acted."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor


class Returns:
    """The returns of the `window` episodes that ended last, of all environments together, in game points."""

    def __init__(self, window: int) -> None:
        self.recent: deque[float] = deque(maxlen=window)
        self.episodes = 0

    def add(self, running: Tensor, reward: Tensor, ended: Tensor, counted: Tensor | None = None) -> None:
        """Add a step's `reward` (N,) to the `running` sums; take those of episodes that `ended`, if `counted`."""
        running += reward
        if ended.any():
            taken = running[ended if counted is None else ended & counted]
            self.recent.extend(taken.tolist())
            self.episodes += len(taken)
            running[ended] = 0.0

    def mean(self, floor: float) -> float:
        """Mean return, and `floor` before any episode has ended."""
        return sum(self.recent) / len(self.recent) if self.recent else floor


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One action per row, drawn from softmax(logits): the largest of logits plus Gumbel noise."""
    exponential = torch.empty_like(logits).exponential_(generator=generator)
    return (logits - exponential.log()).argmax(-1)


def advantages(rewards: Tensor, ended: Tensor, values: Tensor, last: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = δ_t + γλ A_{t+1} with δ_t = r_t + γ V_{t+1} − V_t, cut where an episode `ended`; all (N, T), `last` = V_T
    (N,).

    At λ = 1 this is the T-step return less the value, which is A2C's (Schulman 2015, arXiv 1506.02438, eq. 16).
    """
    out = torch.empty_like(values)
    advantage = torch.zeros_like(last)
    following = last
    for t in reversed(range(values.shape[1])):
        alive = (~ended[:, t]).float()
        delta = rewards[:, t] + gamma * alive * following - values[:, t]
        advantage = delta + gamma * lam * alive * advantage
        out[:, t] = advantage
        following = values[:, t]
    return out


class Sampler:
    """`envs` under way: where each environment is, and what its episode has earned so far.

    Every environment first takes a number of random actions that is uniform on 0…`random_start`, so that they don't
    march in step: all walk for `random_start` steps, and each starts anew when just its own number of them is left.
    What it earns there belongs to its first episode; episodes that end there don't count.
    """

    def __init__(self, envs: Envs, random_start: int, rng: np.random.Generator) -> None:
        def seeds() -> np.ndarray:
            return rng.integers(2**31 - 1, size=envs.count, dtype=np.int32)

        self.envs = envs
        self.obs = envs.reset(seeds())
        self.running = torch.zeros(envs.count, dtype=torch.float64)
        own = rng.integers(random_start + 1, size=envs.count)
        for left in range(random_start, -1, -1):
            if (starts := own == left).any():
                self.obs = envs.reset_some(starts, seeds())
                self.running[torch.from_numpy(starts)] = 0.0
            if left > 0:
                step = envs.step(torch.from_numpy(rng.integers(envs.actions, size=envs.count)))
                self.obs = step.obs
                self.running = torch.where(step.terminated | step.truncated, 0.0, self.running + step.reward)

    @torch.no_grad()
    def collect(
        self,
        policy: Policy,
        steps: int,
        generator: torch.Generator,
        returns: Returns,
        gamma: float,
        lam: float,
        clip_rewards: bool,
    ) -> Rollout:
        """`steps` steps on from where the environments are.

        The learner's rewards are clipped to −1…1 if `clip_rewards`; `returns` counts the game's own. Where a time limit
        cut an episode, γV of the observation it was cut at is added to its last reward, since the game would have gone
        on.
        """
        envs, n = self.envs, self.envs.count
        obs = torch.empty((n, steps, *envs.obs_shape), dtype=self.obs.dtype)
        actions = torch.empty((n, steps), dtype=torch.int64)
        logits = torch.empty((n, steps, envs.actions))
        values, rewards = torch.empty((n, steps)), torch.empty((n, steps))
        ended = torch.empty((n, steps), dtype=torch.bool)
        for t in range(steps):
            logits[:, t], values[:, t] = policy(self.obs)
            action = sample(logits[:, t], generator)
            obs[:, t], actions[:, t] = self.obs, action
            step = envs.step(action)
            ended[:, t] = step.terminated | step.truncated
            returns.add(self.running, step.reward, ended[:, t], step.counted)
            rewards[:, t] = step.reward.clamp(-1, 1) if clip_rewards else step.reward
            if step.final_obs is not None:
                cut = step.truncated & ~step.terminated
                rewards[cut, t] += gamma * policy(step.final_obs[cut])[1]
            self.obs = step.obs
        advantage = advantages(rewards, ended, values, policy(self.obs)[1], gamma, lam)
        log_probs = logits.log_softmax(-1).gather(2, actions[..., None]).squeeze(2)
        return Rollout(obs, actions, log_probs, values, advantage)
