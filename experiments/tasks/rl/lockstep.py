"""Environments in lock-step, as learners see them: what all of them offer, and what a step gives."""

from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

FRAME_SKIP = 4


class Step(NamedTuple):
    """What `step` returns; every tensor's leading dimension is `count`.

    `obs` is what the policy acts on next: where an episode has ended it is the first observation of the next one
    (autoreset in the same step, so that every transition is a real one). `terminated`: the game is over and nothing
    follows. `truncated`: a time limit cut the episode, and `final_obs`, None unless that happened somewhere, holds the
    observations it was cut at (valid where `truncated`), to bootstrap from.
    `counted`: where the episode's return belongs to the metric, everywhere if None.
    """

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tensor | None
    counted: Tensor | None = None


class Envs(Protocol):
    """`count` independent copies of one environment, in lock-step; `frame_skip` game frames pass in one step."""

    count: int
    actions: int
    obs_shape: tuple[int, ...]
    frame_skip: int

    def reset(self, seeds: np.ndarray) -> Tensor:
        """Start every environment anew, each from its own seed."""
        ...

    def reset_some(self, mask: np.ndarray, seeds: np.ndarray) -> Tensor:
        """Start the environments under `mask` anew from their seeds (`seeds` has one for every environment);
        observations of all.
        """
        ...

    def step(self, actions: Tensor) -> Step: ...
