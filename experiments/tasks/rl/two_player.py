"""Two-player Pong (one against one, or two against two) as a one-player environment: the others are played by past
copies of the policy.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.tasks.rl.envs import FRAME_SKIP, Step, missing
from experiments.tasks.rl.policy import Policy
from experiments.tasks.rl.rollout import sample

MODE = {2: 4, 4: 6}  # of the cartridge Video Olympics, by the number of players
FRAMES_PER_EPISODE = 108_000


class TwoPlayerPong:
    """`count` games, in each of which the learner is the right-hand player (of two the first) and a copy from `copies`
    all others.

    Which copy, is drawn anew for each game; those against `copies[0]` are the ones whose return is `counted`. The left-
    hand side sees the screen mirrored, so that every policy plays from the right. Frames are prepared as for one
    player: the larger of the last two of 4, grey, 84×84, the last 4 stacked.
    """

    obs_shape = (4, 84, 84)
    frame_skip = FRAME_SKIP

    def __init__(self, count: int, players: int, copies: list[Policy]) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            from ale_py import roms
            from pettingzoo.atari.base_atari_env import ParallelAtariEnv
        except ModuleNotFoundError as e:
            raise missing(e) from None
        self.games: list[Any] = [
            ParallelAtariEnv(
                game="pong",
                num_players=players,
                mode_num=MODE[players],
                obs_type="grayscale_image",
                max_cycles=FRAMES_PER_EPISODE,
                auto_rom_install_path=str(Path(roms.__file__).parent),
            )
            for _ in range(count)
        ]
        self.count, self.copies = count, copies
        self.agents: list[str] = self.games[0].possible_agents
        self.actions = int(self.games[0].action_space(self.agents[0]).n)
        self.stacks = torch.zeros((count, *self.obs_shape), dtype=torch.uint8)
        self.opponent = np.zeros(count, dtype=np.int64)
        self.rng = np.random.default_rng(0)
        self.generator = torch.Generator()

    def reset(self, seeds: np.ndarray) -> Tensor:
        self.rng = np.random.default_rng(seeds)
        self.generator.manual_seed(int(seeds[0]))
        return self.reset_some(np.ones(self.count, dtype=bool), seeds)

    def reset_some(self, mask: np.ndarray, seeds: np.ndarray) -> Tensor:
        for i in np.flatnonzero(mask):
            self._start(int(i), int(seeds[i]))
        return self.stacks.clone()

    def step(self, actions: Tensor) -> Step:
        moves = np.empty((self.count, len(self.agents)), dtype=np.int64)
        moves[:, 0] = actions.numpy()
        for player in range(1, len(self.agents)):
            left = player % 2 == 1
            moves[:, player] = self._copies_act(self.stacks.flip(-1) if left else self.stacks)
        reward = torch.zeros(self.count)
        over = np.zeros((2, self.count), dtype=bool)
        pairs = np.zeros((self.count, 2, 210, 160), dtype=np.uint8)
        for i, game in enumerate(self.games):
            acts = dict(zip(self.agents, moves[i].tolist(), strict=True))
            for k in range(FRAME_SKIP):
                screens, rewards, terminated, truncated, _ = game.step(acts)
                pairs[i, k % 2] = screens[self.agents[0]][..., 0]
                reward[i] += float(rewards[self.agents[0]])
                if terminated[self.agents[0]] or truncated[self.agents[0]]:
                    over[:, i] = terminated[self.agents[0]], truncated[self.agents[0]]
                    break
        self.stacks = torch.cat([self.stacks[:, 1:], shrink(pairs.max(1))[:, None]], 1)
        final = self.stacks.clone() if over[1].any() else None
        counted = torch.from_numpy(self.opponent == 0)
        for i in np.flatnonzero(over.any(0)):
            self._start(int(i), None)
        terminated, truncated = torch.from_numpy(over)
        return Step(self.stacks.clone(), reward, terminated, truncated, final, counted)

    def _start(self, i: int, seed: int | None) -> None:
        screens, _ = self.games[i].reset(seed=seed)
        self.stacks[i] = shrink(screens[self.agents[0]][None, ..., 0])
        self.opponent[i] = self.rng.integers(len(self.copies))

    @torch.no_grad()
    def _copies_act(self, obs: Tensor) -> np.ndarray:
        actions = torch.empty(self.count, dtype=torch.int64)
        for k in np.unique(self.opponent):
            mine = torch.from_numpy(self.opponent == k)
            actions[mine] = sample(self.copies[k](obs[mine])[0], self.generator)
        return actions.numpy()


def shrink(screens: np.ndarray) -> Tensor:
    """Screens (n, 210, 160) to (n, 84, 84) by the mean over areas, grey levels 0…255."""
    return F.adaptive_avg_pool2d(torch.from_numpy(screens)[:, None].float(), 84)[:, 0].round().to(torch.uint8)
