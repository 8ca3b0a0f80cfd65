"""Two players: zero sum, either side alike, copies that stay what they were, and a score against the first of them."""

import numpy as np
import pytest
import torch

pytest.importorskip("ale_py")
pytest.importorskip("pettingzoo.atari.base_atari_env")

from experiments.config import load
from experiments.tasks import TASKS
from experiments.tasks.rl.policy import Policy
from experiments.tasks.rl.selfplay import SelfPlayConfig, SelfPlayTask
from experiments.tasks.rl.two_player import TwoPlayerPong, shrink

CPU = torch.device("cpu")


class Still(torch.nn.Module):
    """Always takes one action."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.action, self.seen = action, torch.empty(0)

    def forward(self, obs):
        self.seen = obs
        logits = torch.full((len(obs), 6), -1e9)
        logits[:, self.action] = 0.0
        return logits, torch.zeros(len(obs))


def task(**changes) -> SelfPlayTask:
    fields = {"network": "small", "random_start": 4, "copy_every": 2, "copies": 3}
    return SelfPlayTask(SelfPlayConfig("pong_selfplay", **(fields | changes)), 0, CPU)


def play(games: TwoPlayerPong, action: int, steps: int) -> tuple[float, list[float]]:
    """Points and returns of the first game."""
    games.reset(np.arange(games.count, dtype=np.int32))
    total, ended = 0.0, []
    for _ in range(steps):
        step = games.step(torch.full((games.count,), action))
        total += float(step.reward[0])
        if step.terminated[0]:
            ended.append(total)
            total = 0.0
    return total, ended


@pytest.mark.parametrize("players", [2, 4])
def test_who_serves_wins_against_who_does_not_move(players):
    """Fire serves and moves nobody: the ball goes past one side or the other, one point a serve, 21 to end a game."""
    games = TwoPlayerPong(1, players, [Still(1)])  # type: ignore[list-item]
    total, ended = play(games, 1, 1500)
    assert abs(total) > 0 or ended
    assert all(abs(score) <= 21 and score != 0 for score in ended)


@pytest.mark.parametrize(("name", "players"), [("pong_selfplay", 2), ("pong_selfplay_2v2", 4)])
def test_each_number_of_players_has_a_config_that_plays(name, players):
    run = load([f"task={name}", "preset=smoke", "task.random_start=4"]).run
    played = TASKS[name][1](run.task, 0, CPU)
    obs, actions, returns, advantages = played.batch(2, torch.Generator().manual_seed(0))
    assert obs.shape == (2, 5, 4, 84, 84) and actions.shape == returns.shape == advantages.shape == (2, 5)
    assert f"{players // 2} against {players // 2}" in played.data
    assert len(played.environments(2).envs.agents) == players  # type: ignore[attr-defined]
    played.loss((obs, actions, returns, advantages)).backward()


def test_the_left_side_sees_the_screen_mirrored():
    copy = Still(0)
    games = TwoPlayerPong(1, 2, [copy])  # type: ignore[list-item]
    obs = games.reset(np.array([1], dtype=np.int32))
    games.step(torch.tensor([0]))
    assert torch.equal(copy.seen, obs.flip(-1))


def test_screens_shrink_by_the_mean_over_areas():
    screen = np.zeros((1, 210, 160), dtype=np.uint8)
    screen[:, :, 80:] = 200
    small = shrink(screen)
    assert small.shape == (1, 84, 84) and (small[0, :, :42] == 0).all() and (small[0, :, 42:] == 200).all()


def test_copies_are_the_first_and_the_latest_and_do_not_learn():
    played, g = task(), torch.Generator().manual_seed(0)
    weight = played.model.logits.weight
    first = weight.detach().clone()
    for _ in range(9):
        played.batch(2, g)
        with torch.no_grad():
            weight += 1
    copies = [copy.logits.weight for copy in played.copies]
    assert [round(float((copy - first).mean())) for copy in copies] == [0, 6, 8]
    assert torch.equal(copies[0], first)
    assert isinstance(played.copies[0], Policy) and not copies[0].requires_grad


def test_only_games_against_the_first_copy_are_scored():
    games = TwoPlayerPong(6, 2, [Still(0), Still(0), Still(0)])  # type: ignore[list-item]
    games.reset(np.arange(6, dtype=np.int32))
    step = games.step(torch.zeros(6, dtype=torch.int64))
    assert step.counted is not None
    assert np.array_equal(step.counted.numpy(), games.opponent == 0) and 0 < int(step.counted.sum()) < 6


def test_same_seed_same_games_and_a_checkpoint_keeps_the_copies():
    def rollouts() -> tuple[SelfPlayTask, torch.Tensor]:
        played, g = task(players=4), torch.Generator().manual_seed(0)
        return played, torch.stack([played.batch(2, g)[0] for _ in range(3)])

    (played, first), (_, again) = rollouts(), rollouts()
    assert torch.equal(first, again)
    resumed = task(players=4)
    resumed.load_state_dict(played.state_dict())
    assert len(resumed.copies) == len(played.copies) == 2 and resumed.batches == 3 and resumed.restarts == 1
    assert all(
        torch.equal(a, b)
        for one, other in zip(resumed.copies, played.copies, strict=True)
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )
