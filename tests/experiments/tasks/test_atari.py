"""Real Pong, headless: autoreset, determinism, what the networks are, and that every game's config builds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("ale_py")
pytest.importorskip("gymnasium")

from experiments.config import load
from experiments.tasks.rl import a2c
from experiments.tasks.rl.a2c import A2CConfig, A2CTask
from experiments.tasks.rl.envs import AtariEnvs, is_game
from experiments.tasks.rl.policy import Policy
from experiments.training.loop import Trainer

CPU = torch.device("cpu")
SEEDS = np.array([3, 4], dtype=np.int32)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pong(**changes) -> A2CTask:
    return A2CTask(
        A2CConfig("pong", "pong", **({"network": "small", "random_start": 8, "floor": -21} | changes)), 0, CPU
    )


@pytest.mark.parametrize(
    ("network", "parameters"),
    [
        ("nature", 4 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 512 + 512 + 7 * 513),
        ("small", 4 * 16 * 64 + 16 + 16 * 32 * 16 + 32 + 2592 * 256 + 256 + 7 * 257),
    ],
)
def test_networks_are_those_of_dqn(network, parameters):
    policy = Policy(network, (4, 84, 84), 6, 0)
    assert sum(p.numel() for p in policy.parameters()) == parameters
    again, other = Policy(network, (4, 84, 84), 6, 0), Policy(network, (4, 84, 84), 6, 1)
    obs = torch.randint(0, 256, (3, 4, 84, 84), generator=generator()).to(torch.uint8)
    logits, value = policy(obs)
    assert logits.shape == (3, 6) and value.shape == (3,)
    assert torch.equal(logits, again(obs)[0]) and not torch.equal(logits, other(obs)[0])
    assert (logits.softmax(-1) - 1 / 6).abs().max() < 0.02, "the policy begins near uniform"


def test_standing_still_loses_21_to_nothing_and_the_next_game_begins_in_the_same_step():
    envs = AtariEnvs("pong", 2)
    first = envs.reset(SEEDS)
    idle, total, games = torch.zeros(2, dtype=torch.int64), torch.zeros(2), 0
    for _ in range(1100):
        step = envs.step(idle)
        total += step.reward
        assert not step.truncated.any() and step.final_obs is None
        for i in torch.nonzero(step.terminated).flatten():
            assert total[i] == -21, "every point of the game is in some step's reward"
            assert step.obs[i, :, :14].float().std() > 0
            assert (step.obs[i, -1, 14:] == first[i, -1, 14:]).float().mean() > 0.98, (
                "a new game, and no frame of the old"
            )
            total[i], games = 0.0, games + 1
    assert games >= 2


def test_starting_some_anew_leaves_the_others_where_they_are():
    envs, alone = AtariEnvs("pong", 2), AtariEnvs("pong", 2)
    for each in (envs, alone):
        each.reset(SEEDS)
        for _ in range(30):
            obs = each.step(torch.tensor([2, 3])).obs
    after = envs.reset_some(np.array([True, False]), np.array([9, 9], dtype=np.int32))
    assert torch.equal(after[1], obs[1]) and not torch.equal(after[0], obs[0])
    assert torch.equal(envs.step(torch.tensor([2, 3])).obs[1], alone.step(torch.tensor([2, 3])).obs[1])


def test_same_seed_same_rollouts():
    def rollouts(seed: int) -> torch.Tensor:
        task, g = A2CTask(pong().config, seed, CPU), generator(seed)
        return torch.stack([task.batch(2, g)[0] for _ in range(4)])

    first = rollouts(0)
    assert first.shape == (4, 2, 5, 4, 84, 84) and first.dtype == torch.uint8
    assert torch.equal(first, rollouts(0)) and not torch.equal(first, rollouts(1))


def dead_units(optimizer: str) -> tuple[float, float]:
    """The share of the last hidden layer's units that are 0 on a whole batch: by the initial weights, and after 15
    steps."""
    run = load(["task=pong", "preset=smoke", "task.random_start=8", f"optimizer.name={optimizer}"]).run
    run = replace(run, batch_size=40, micro_batch=20, lr=5e-4)
    task = A2CTask(run.task, 0, CPU)
    trainer = Trainer(run, task, CPU)
    for _ in range(15):
        trainer.train_step()
    pixels = task.batch(8, generator())[0].flatten(0, 1).float() / 255
    with torch.no_grad():
        first, last = (model.trunk(pixels) for model in (Policy("small", (4, 84, 84), 6, 0), task.model))
    return float((first.amax(0) == 0).float().mean()), float((last.amax(0) == 0).float().mean())


def test_the_first_steps_leave_the_network_alive():
    """PyTorch's RMSProp moves every weight by ten learning rates at once, and what it kills never learns again."""
    first, last = dead_units("rmsprop_tf")
    assert last < first + 0.02
    first, last = dead_units("rmsprop")
    assert last > first + 0.1, "the reason why Atari has TensorFlow's"


def test_before_any_game_has_ended_the_metric_is_the_floor():
    task = pong()
    task.batch(2, generator())
    assert task.evaluate() == (21.0, -21.0)
    assert task.frames == 2 * 5 * 4 and task.data == "pong, 4 frames an observation"
    assert task.frames == 2 * 5 * task.config.frames_per_example


def test_games_are_known_by_their_names_alone():
    from ale_py import roms
    from gymnasium import registry

    assert all(map(is_game, roms.get_all_rom_ids())) and not any(map(is_game, registry))


@pytest.mark.parametrize("name", [name for name in a2c.NAMES if name != "cartpole"])
def test_every_game_has_a_config(name):
    run = load([f"task={name}", "preset=smoke"]).run
    task = A2CTask(run.task, 0, CPU)
    assert run.task.env_id == name
    assert task.model.logits.out_features == AtariEnvs(name.removesuffix("_ram"), 1).actions >= 4
