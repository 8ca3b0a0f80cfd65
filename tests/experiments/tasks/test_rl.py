"""A2C against exact answers: rollouts replayed one environment at a time, advantages summed by hand, the loss written
anew.
"""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
pytest.importorskip("ale_py")
import gymnasium

from experiments.config import RunConfig, load
from experiments.errors import UserError
from experiments.sweep.cost import price
from experiments.sweep.search import Point
from experiments.tasks.rl import envs as rl_envs
from experiments.tasks.rl.a2c import A2CConfig, A2CTask
from experiments.tasks.rl.policy import Policy
from experiments.tasks.rl.ppo import PPOConfig, PPOTask
from experiments.tasks.rl.rollout import Returns, Sampler, advantages, sample
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord
from noisescale import MomentAverage, gradient_moments

CPU = torch.device("cpu")
GAMMA = 0.9


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cartpole(seed: int = 0, **changes) -> A2CTask:
    fields = {"env_id": "CartPole-v1", "random_start": 20, "clip_rewards": False} | changes
    return A2CTask(A2CConfig("cartpole", **fields), seed, CPU)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_advantages_are_discounted_sums_of_temporal_differences_cut_at_episode_ends(lam):
    g = generator()
    rewards, values, last = (torch.randn(shape, generator=g) for shape in ((3, 6), (3, 6), (3,)))
    ended = torch.zeros(3, 6, dtype=torch.bool)
    ended[1, 2] = ended[2, 5] = True
    found = advantages(rewards, ended, values, last, GAMMA, lam)
    following = torch.cat([values[:, 1:], last[:, None]], 1)
    for i in range(3):
        for t in range(6):
            expected, weight = 0.0, 1.0
            for u in range(t, 6):
                alive = 0.0 if ended[i, u] else 1.0
                expected += weight * (rewards[i, u] + GAMMA * alive * following[i, u] - values[i, u])
                weight *= GAMMA * lam * alive
            assert found[i, t] == pytest.approx(float(expected), abs=1e-5)


def test_at_lambda_one_the_advantage_is_the_five_step_return_less_the_value():
    rewards, values = torch.tensor([[1.0, 0, 0, 2, 0]]), torch.full((1, 5), 0.5)
    found = advantages(rewards, torch.zeros(1, 5, dtype=torch.bool), values, torch.tensor([3.0]), GAMMA, 1.0)
    assert found[0, 0] == pytest.approx(1 + 2 * GAMMA**3 + 3 * GAMMA**5 - 0.5)


def test_actions_are_drawn_from_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0])
    drawn = sample(logits.expand(200_000, 3), generator())
    assert torch.allclose(drawn.bincount() / 200_000, logits.softmax(0), atol=0.004)
    assert (drawn == sample(logits.expand(200_000, 3), generator())).all()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0"])
def test_a_rollout_is_what_single_environments_do(env_id):
    """Autoreset: each environment by itself gives the same observations, rewards and ends; a time limit is
    bootstrapped, a fall is not.
    """
    envs = rl_envs.make(env_id, 3)
    policy = Policy("mlp", envs.obs_shape, envs.actions, 1)
    sampler = Sampler(envs, 0, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    rng.integers(2**31 - 1, size=3, dtype=np.int32), rng.integers(1, size=3)
    seeds = rng.integers(2**31 - 1, size=3, dtype=np.int32)
    returns = Returns(1000)
    rollout = sampler.collect(policy, 430, generator(), returns, GAMMA, 0.0, False)

    ends = {"terminated": 0, "truncated": 0}
    for i in range(3):
        env = gymnasium.make(env_id)
        obs, _ = env.reset(seed=int(seeds[i]))
        for t in range(429):
            assert np.array_equal(rollout.obs[i, t], obs)
            after, reward, terminated, truncated, _ = env.step(int(rollout.actions[i, t]))
            with torch.no_grad():
                value = float(policy(torch.from_numpy(after)[None])[1])
            bootstrap = 0.0 if terminated else GAMMA * value
            assert rollout.advantages[i, t] + rollout.values[i, t] == pytest.approx(float(reward) + bootstrap, abs=1e-5)
            ends["terminated"] += terminated
            ends["truncated"] += truncated
            obs = env.reset()[0] if terminated or truncated else after
        env.close()
    assert ends["terminated" if env_id == "CartPole-v1" else "truncated"] >= 6
    assert returns.episodes >= sum(ends.values())


class Counting:
    """Observes how long ago it was started, earns 1 a step, never ends."""

    actions, obs_shape, frame_skip = 2, (1,), 1

    def __init__(self, count: int) -> None:
        self.count, self.age = count, torch.zeros(count)

    def reset(self, seeds):
        self.age = torch.zeros(self.count)
        return self.age[:, None].clone()

    def reset_some(self, mask, seeds):
        self.age[torch.from_numpy(mask)] = 0.0
        return self.age[:, None].clone()

    def step(self, actions):
        self.age += 1
        nothing = torch.zeros(self.count, dtype=torch.bool)
        return rl_envs.Step(self.age[:, None].clone(), torch.ones(self.count), nothing, nothing, None)


def test_each_environment_starts_by_a_number_of_random_steps_of_its_own():
    sampler = Sampler(Counting(2000), 500, np.random.default_rng(0))
    steps = sampler.obs[:, 0]
    assert steps.min() == 0 and steps.max() == 500
    assert float(steps.mean()) == pytest.approx(250, abs=4 * 144.6 / math.sqrt(2000))
    assert float(steps.std()) == pytest.approx(144.6, rel=0.05)
    assert torch.equal(sampler.running, steps.double()), "what it earns there belongs to its first episode"


def test_the_metric_is_the_mean_over_the_episodes_that_ended_last():
    returns, running = Returns(window=2), torch.zeros(2, dtype=torch.float64)
    assert returns.mean(floor=-21.0) == -21.0
    for reward, ended in (([1.0, 5.0], [False, False]), ([1.0, 0.0], [True, False]), ([7.0, 1.0], [True, True])):
        returns.add(running, torch.tensor(reward), torch.tensor(ended))
    assert list(returns.recent) == [7.0, 6.0] and returns.episodes == 3
    assert returns.mean(floor=-21.0) == 6.5


def test_loss_is_the_mean_over_environments_of_three_terms():
    task = cartpole()
    obs, actions, returns, advantage = batch = task.batch(6, generator())
    logits, value = task.model(obs)
    policy = torch.distributions.Categorical(logits=logits)
    config = task.config
    terms = -policy.log_prob(actions) * advantage + config.value_weight * (value - returns) ** 2
    expected = (terms - config.entropy_weight * policy.entropy()).mean()
    assert torch.allclose(task.loss(batch), expected, rtol=1e-5)
    halves = [task.loss(half) for half in zip(*(tensor.split(3) for tensor in batch), strict=True)]
    assert torch.allclose(task.loss(batch), torch.stack(halves).mean(), rtol=1e-5)
    assert obs.shape == (6, 5, 4) and actions.shape == returns.shape == advantage.shape == (6, 5)


def run_config(*overrides: str, **changes) -> RunConfig:
    run = load(["task=cartpole", "preset=smoke", *overrides]).run
    return replace(run, **{"batch_size": 40, "micro_batch": 20, "max_steps": 40, "stop_metric": None} | changes)


def curve(run: RunConfig, folder) -> list[dict]:
    trainer = Trainer(run, A2CTask(run.task, run.seed, CPU), CPU)
    record = RunRecord(folder)
    record.start(run)
    trainer.run(record, math.inf)
    return [{k: v for k, v in row.items() if k != "seconds"} for row in trainer.rows]


def test_same_seed_same_curve(tmp_path):
    first, again = (curve(run_config(), tmp_path / name) for name in ("a", "b"))
    other = curve(run_config(seed=1), tmp_path / "c")
    assert repr(first) == repr(again) != repr(other)
    assert first[-1]["noise_steps"] > 0 and first[-1]["trace_cov"] > 0


def test_any_environment_runs_in_place_of_pong(tmp_path):
    assert curve(run_config("task=pong", "task.env_id=CartPole-v1"), tmp_path)[-1]["metric"] > 5


def test_a_resumed_run_goes_on_with_new_environments_and_says_so(tmp_path):
    run = run_config()
    trainer = Trainer(run, A2CTask(run.task, run.seed, CPU), CPU)
    for _ in range(30):
        trainer.train_step()
    trainer.evaluate()
    RunRecord(tmp_path).save_checkpoint(trainer.state_dict())
    task = A2CTask(run.task, run.seed, CPU)
    resumed = Trainer(run, task, CPU)
    state = RunRecord(tmp_path).load_checkpoint(CPU)
    assert state is not None
    resumed.load_state_dict(state)
    assert task.evaluate() == trainer.task.evaluate() and task.frames == 30 * 40
    assert torch.equal(resumed.flat.vector, trainer.flat.vector)
    record = RunRecord(tmp_path / "end")
    record.start(run)
    summary = resumed.run(record, math.inf)
    assert summary.step == 40 and summary.restarts == 1
    assert trainer.task.restarts == 0
    assert summary.data == trainer.task.data, "one table takes runs that were stopped and runs that were not"


@pytest.mark.parametrize(("task", "small", "large"), [("cartpole", 10, 40), ("cartpole_ppo", 32, 128)])
def test_a_sweep_is_priced_over_batch_sizes_of_different_micro_batches(task, small, large):
    suite = load([f"task={task}", "preset=smoke", "task.random_start=0", f"micro_batch={2 * small}"])
    points = [Point(size, 1e-3, 0) for size in (small, large)]
    assert all(price(suite, points).of(suite.point(*point)) > 0 for point in points)


@pytest.mark.parametrize("task", ["cartpole", "pong_ppo", "pong_selfplay"])
def test_a_gpu_is_refused_before_anything_is_played(task, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=rf"device=cuda: the games of {task} are played on the CPU; allowed: cpu"):
        load([f"task={task}", "preset=smoke", "device=cuda"])


def test_the_number_of_environments_is_fixed():
    task = cartpole()
    task.batch(4, generator())
    with pytest.raises(ValueError, match=r"8 environments asked for where the run has 4"):
        task.batch(8, generator())


@pytest.mark.parametrize(
    ("env_id", "says"),
    [("Pongg", "env_id=Pongg"), ("Nope-v3", "env_id=Nope-v3"), ("Pendulum-v1", "a choice of actions")],
)
def test_an_environment_that_cannot_be_is_one_line(env_id, says):
    with pytest.raises(UserError, match=says) as raised:
        cartpole(env_id=env_id)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("package", ["gymnasium", "ale_py"])
def test_without_the_optional_packages_one_line_says_how_to_get_them(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs the package {package}: .*make sweep.*--extra atari"):
        cartpole()


@pytest.mark.slow
def test_the_registry_needs_no_environment():
    code = (
        "import sys, experiments.tasks; sys.exit(any(m in sys.modules for m in ('gymnasium', 'ale_py', 'pettingzoo')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cartpole_is_learnt():
    task = cartpole(value_weight=0.05)
    optimizer = torch.optim.RMSprop(task.model.parameters(), lr=4e-3, alpha=0.99, eps=1e-5)
    g = generator()
    for _ in range(400):
        optimizer.zero_grad()
        task.loss(task.batch(16, g)).backward()
        optimizer.step()
    assert task.evaluate().metric > 120, "a random policy balances for 22 steps"


def ppo_task(**changes) -> PPOTask:
    fields = {"random_start": 20, "clip_rewards": False, "sample_size": 8, "value_weight": 0.0, "entropy_weight": 0.0}
    return PPOTask(PPOConfig("cartpole_ppo", "CartPole-v1", **(fields | changes)), 0, CPU)


def gradient(task: A2CTask, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    task.model.zero_grad()
    task.loss(batch).backward()
    return torch.cat([p.grad.flatten() for p in task.model.parameters()])


def test_at_the_weights_that_acted_ppo_has_the_gradient_of_a2c():
    task = ppo_task(value_weight=0.5, entropy_weight=0.01)
    batch = task.batch(4, generator())
    a2c = cartpole(value_weight=0.5, entropy_weight=0.01)
    a2c.model = task.model
    assert torch.allclose(gradient(task, batch), gradient(a2c, batch[:4]), rtol=1e-4, atol=1e-6)


def test_ppo_gives_no_reason_to_move_further_once_the_ratio_is_clipped():
    task = ppo_task()
    obs, actions, returns, advantages, old = task.batch(4, generator())
    old = old - 1.0
    assert gradient(task, (obs, actions, returns, advantages.abs(), old)).count_nonzero() == 0
    assert gradient(task, (obs, actions, returns, -advantages.abs(), old)).count_nonzero() > 0


def test_every_environment_is_used_as_often_as_there_are_epochs():
    task, g = ppo_task(epochs=3, minibatches=2), generator()
    rollout = [task.batch(4, g)[0] for _ in range(3 * 2)]
    starts, used = torch.cat(rollout)[:, 0].unique(dim=0, return_counts=True)
    assert len(starts) == 8 and (used == 3).all()
    assert task.observations == 8 * 8, "examples / epochs"
    task.batch(4, g)
    assert task.observations == 2 * 8 * 8


def moments(task: A2CTask, batch: tuple[torch.Tensor, ...], groups: int) -> tuple[float, float]:
    """|G|² and tr Σ an observation from `groups` groups of environments."""
    pieces = zip(*(tensor.chunk(groups) for tensor in batch), strict=True)
    gradients = torch.stack([gradient(task, piece) for piece in pieces]).double()
    size = len(batch[0]) // groups * task.sample_size
    found = gradient_moments(gradients.square().sum(1), [size] * groups, gradients.mean(0).square().sum())
    return float(found.grad_sq_norm), float(found.trace_cov)


@pytest.mark.slow
def test_the_noise_scale_of_environments_under_way_is_that_of_independent_rollouts():
    """The policy stays fixed. One set of environments goes on and on; against it, every batch from environments of its
    own.
    """
    n, batches, g = 128, 40, generator()
    averages = {name: MomentAverage(window=1000) for name in ("under way", "independent")}
    running = cartpole(seed=3, random_start=100)
    for k in range(batches):
        averages["under way"].update(*moments(running, running.batch(n, g), 8), n * 5)
        fresh = cartpole(seed=3, random_start=100)
        fresh.restarts = k + 1
        averages["independent"].update(*moments(fresh, fresh.batch(n, g), 8), n * 5)
    one, other = (average.estimate() for average in averages.values())
    assert one.low < other.high and other.low < one.high
    assert one.b_simple == pytest.approx(other.b_simple, rel=0.25)
