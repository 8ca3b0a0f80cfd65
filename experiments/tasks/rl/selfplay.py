"""Self-play: A2C against past copies of itself, the road from Pong to Dota.

The policy meets copies of itself, each game's opponent drawn evenly from the first one (the initial weights, which play
at random) and the latest few. To the learner the opponent is part of the environment, so samples, loss and noise scale
are A2C's. The metric is the score against a fixed opponent, the first copy: the mean return (points won less points
lost, −21…21) of the latest training games against it, with no step of an environment beyond training's.
"""

from copy import deepcopy
from typing import Any, Literal, get_args

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.tasks.rl.a2c import A2CTask, RolloutConfig
from experiments.tasks.rl.envs import Envs
from experiments.tasks.rl.policy import Policy
from experiments.tasks.rl.two_player import TwoPlayerPong

Name = Literal["pong_selfplay", "pong_selfplay_2v2"]
NAMES: tuple[str, ...] = get_args(Name)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SelfPlayConfig(RolloutConfig):
    """`players`: one against one, or two against two with a copy for a partner. The current weights join the `copies`
    every `copy_every` batches, in place of the oldest but the first.
    """

    name: Name
    env_id: Literal["pong"] = "pong"
    players: Literal[2, 4] = 2
    copies: int = Field(default=8, ge=2)
    copy_every: int = Field(default=1000, gt=0)


class SelfPlayTask(A2CTask):
    """A2C on `TwoPlayerPong`."""

    def __init__(self, config: SelfPlayConfig, seed: int, device: torch.device) -> None:
        self.selfplay = config
        self.copies: list[Policy] = []
        self.batches = 0
        super().__init__(config, seed, device)
        self._copy()

    @property
    def data(self) -> str:
        """As A2C's, and who plays."""
        side = self.selfplay.players // 2
        return f"{super().data}; {side} against {side}, all but the learner past copies of it"

    def make_envs(self, count: int) -> Envs:
        """`count` games against the copies."""
        return TwoPlayerPong(count, self.selfplay.players, self.copies)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """As A2C's; before it, when due, the policy joins its past copies."""
        if self.batches > 0 and self.batches % self.selfplay.copy_every == 0:
            self._copy()
        self.batches += 1
        return super().batch(size, generator)

    def state_dict(self) -> dict[str, Any]:
        """As A2C's, with the copies."""
        copies = [{k: v.clone() for k, v in copy.state_dict().items()} for copy in self.copies]
        return super().state_dict() | {"copies": copies, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.batches = state["batches"]
        self.copies.clear()
        for weights in state["copies"]:
            self._copy(weights)

    def _copy(self, weights: dict[str, Tensor] | None = None) -> None:
        copy = deepcopy(self.model)
        if weights is not None:
            copy.load_state_dict(weights)
        if len(self.copies) == self.selfplay.copies:
            del self.copies[1]
        self.copies.append(copy.requires_grad_(False))
