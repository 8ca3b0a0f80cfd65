"""Pong through its memory: a lost game's score, determinism, the stack's order, and what differs between seeds."""

import numpy as np
import pytest
import torch

pytest.importorskip("ale_py")
pytest.importorskip("gymnasium")

from experiments.tasks.rl.envs import make

SEEDS = np.array([3, 4])


def test_standing_still_loses_21_to_nothing():
    envs = make("pong_ram", 2)
    envs.reset(SEEDS)
    total, ended = torch.zeros(2), torch.zeros(2, dtype=torch.bool)
    for _ in range(1100):
        step = envs.step(torch.zeros(2, dtype=torch.int64))
        total += step.reward * ~ended
        ended |= step.terminated
    assert ended.all() and total.tolist() == [-21, -21]


def test_the_same_seeds_and_actions_give_the_same_game_and_the_stack_moves_by_one():
    one, two = make("pong_ram", 2), make("pong_ram", 2)
    before = one.reset(SEEDS)
    assert before.shape == (2, 512) and torch.equal(before, two.reset(SEEDS))
    assert not torch.equal(before[0], before[1]), "other seeds, other idle frames"
    actions = torch.randint(0, one.actions, (50, 2), generator=torch.Generator().manual_seed(0))
    for action in actions:
        now = one.step(action).obs
        assert torch.equal(now, two.step(action).obs)
        assert torch.equal(now[:, :384], before[:, 128:]) and not torch.equal(now[:, 384:], now[:, 256:384])
        assert now.abs().max() <= 1
        before = now
