"""An ALE game seen through the console's 128 bytes of memory: no pixels, so a small network is enough."""

import numpy as np
import torch
from torch import Tensor

from experiments.tasks.rl.lockstep import FRAME_SKIP, Step

STACK = 4
BYTES = 128
IDLE = 30


class RamEnvs:
    """`count` consoles that play `game`, each action held for 4 frames and never repeated at random, up to 30 idle
    frames at the start; observations (count, 4·128) are the memory after each of the last 4 steps, oldest first, bytes
    scaled to [−1, 1].

    Rewards are the game's own; actions are the game's minimal set; an episode has no time limit but the game's.
    """

    frame_skip = FRAME_SKIP

    def __init__(self, game: str, count: int) -> None:
        from ale_py import ALEInterface, LoggerMode, roms

        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.rom = roms.get_rom_path(game)
        self.consoles = [ALEInterface() for _ in range(count)]
        self.idle: dict[int, np.random.Generator] = {}  # by console, for the idle frames
        for i in range(count):
            self._seed(i, i)
        self.choices = self.consoles[0].getMinimalActionSet()
        self.count = count
        self.actions = len(self.choices)
        self.obs_shape: tuple[int, ...] = (STACK * BYTES,)
        self.memory = np.zeros((count, STACK, BYTES), dtype=np.uint8)

    def reset(self, seeds: np.ndarray) -> Tensor:
        return self.reset_some(np.ones(self.count, dtype=bool), seeds)

    def reset_some(self, mask: np.ndarray, seeds: np.ndarray) -> Tensor:
        for i in np.flatnonzero(mask):
            self._seed(int(i), int(seeds[i]))
            self._start(int(i))
        return self._obs()

    def step(self, actions: Tensor) -> Step:
        reward, over = torch.zeros(self.count), torch.zeros(self.count, dtype=torch.bool)
        self.memory[:, :-1] = self.memory[:, 1:]
        for i, (console, action) in enumerate(zip(self.consoles, actions.tolist(), strict=True)):
            for _ in range(FRAME_SKIP):
                reward[i] += console.act(self.choices[action])
                if console.game_over():
                    over[i] = True
                    break
            if over[i]:
                self._start(i)
            else:
                self.memory[i, -1] = console.getRAM()
        return Step(self._obs(), reward, over, torch.zeros(self.count, dtype=torch.bool), None)

    def _seed(self, i: int, seed: int) -> None:
        console = self.consoles[i]
        console.setInt("random_seed", seed)
        console.setFloat("repeat_action_probability", 0.0)
        console.loadROM(self.rom)
        self.idle[i] = np.random.default_rng(seed)

    def _start(self, i: int) -> None:
        console = self.consoles[i]
        console.reset_game()
        for _ in range(self.idle[i].integers(IDLE + 1)):
            console.act(self.choices[0])
        self.memory[i] = console.getRAM()

    def _obs(self) -> Tensor:
        return torch.from_numpy(self.memory.reshape(self.count, -1)).float() / 127.5 - 1
