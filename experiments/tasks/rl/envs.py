"""Environments by name: the ALE's C++ vector environment, its consoles' memory, or any of Gymnasium's."""

import re

import numpy as np
import torch
from torch import Tensor

from experiments.errors import UserError
from experiments.tasks.rl.lockstep import FRAME_SKIP, Envs, Step
from experiments.tasks.rl.ram_envs import RamEnvs


def is_game(env_id: str) -> bool:
    """By the name alone, for those who read tables without the games: a ROM's name is in small letters (`pong`), one of
    Gymnasium's has capitals or a version (`CartPole-v1`)."""
    return re.fullmatch(r"[a-z0-9_]+", env_id) is not None


def make(env_id: str, count: int) -> Envs:
    """`count` copies of `env_id`: an ALE game by its ROM's name (`pong`), the same seen in its memory (`pong_ram`),
    anything else by Gymnasium's name (`CartPole-v1`).

    Raises:
        UserError: the optional packages are missing, or there is no such environment, or its spaces are not a
            vector and a choice.
    """
    try:
        import gymnasium
        from ale_py import roms
    except ModuleNotFoundError as e:
        raise missing(e) from None
    if env_id in roms.get_all_rom_ids():
        return AtariEnvs(env_id, count)
    if env_id.removesuffix("_ram") in roms.get_all_rom_ids():
        return RamEnvs(env_id.removesuffix("_ram"), count)
    try:
        return GymEnvs(env_id, count)
    except gymnasium.error.UnregisteredEnv as e:
        raise UserError(
            f"task.env_id={env_id}: {e}; an ALE game goes by its ROM's name, such as space_invaders"
        ) from None


def missing(error: ModuleNotFoundError) -> UserError:
    """The one line that a user without the optional packages sees."""
    return UserError(
        f"this task needs the package {error.name}: run it by `make sweep`, which installs it, "
        "or `uv sync --extra experiments --extra atari`"
    )


class AtariEnvs:
    """An ALE game as DQN saw it: 84×84 grey, each action held for 4 frames, the last 4 observations stacked, up to 30
    idle frames at the start.

    Rewards are the game's own (clipping is the learner's business, the return is counted in the game's points); actions
    are the game's minimal set and are never repeated at random.
    """

    frame_skip = FRAME_SKIP

    def __init__(self, game: str, count: int) -> None:
        from ale_py.vector_env import AtariVectorEnv
        from gymnasium.vector import AutoresetMode

        self.env = AtariVectorEnv(
            game,
            num_envs=count,
            num_threads=torch.get_num_threads(),
            autoreset_mode=AutoresetMode.SAME_STEP,
            frameskip=FRAME_SKIP,
            reward_clipping=False,
        )
        self.count = count
        self.actions = int(self.env.single_action_space.n)
        self.obs_shape: tuple[int, ...] = self.env.single_observation_space.shape

    def reset(self, seeds: np.ndarray) -> Tensor:
        return torch.from_numpy(self.env.reset(seed=seeds)[0])

    def reset_some(self, mask: np.ndarray, seeds: np.ndarray) -> Tensor:
        return torch.from_numpy(self.env.reset(seed=seeds[mask], options={"reset_mask": mask})[0])

    def step(self, actions: Tensor) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions.numpy())
        final = torch.from_numpy(info["final_obs"]) if truncated.any() else None
        to = torch.from_numpy
        return Step(to(obs), to(reward).float(), to(terminated), to(truncated), final)


class GymEnvs:
    """Any Gymnasium environment whose observation is a vector and whose action is one of a few."""

    frame_skip = 1

    def __init__(self, env_id: str, count: int) -> None:
        import gymnasium
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        self.env = SyncVectorEnv([lambda: gymnasium.make(env_id)] * count, autoreset_mode=AutoresetMode.SAME_STEP)
        space, choice = self.env.single_observation_space, self.env.single_action_space
        if not (
            isinstance(space, gymnasium.spaces.Box)
            and len(space.shape) == 1
            and isinstance(choice, gymnasium.spaces.Discrete)
        ):
            raise UserError(
                f"task.env_id={env_id}: observes {space}, acts by {choice}; allowed: a vector, a choice of actions"
            )
        self.count = count
        self.actions = int(choice.n)
        self.obs_shape: tuple[int, ...] = space.shape

    def reset(self, seeds: np.ndarray) -> Tensor:
        return torch.from_numpy(self.env.reset(seed=seeds.tolist())[0]).float()

    def reset_some(self, mask: np.ndarray, seeds: np.ndarray) -> Tensor:
        return torch.from_numpy(self.env.reset(seed=seeds.tolist(), options={"reset_mask": mask})[0]).float()

    def step(self, actions: Tensor) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions.numpy())
        final = None
        if truncated.any():
            final = torch.from_numpy(
                np.stack([o if f is None else f for o, f in zip(obs, info["final_obs"], strict=True)])
            ).float()
        to = torch.from_numpy
        return Step(to(obs).float(), to(reward).float(), to(terminated), to(truncated), final)
