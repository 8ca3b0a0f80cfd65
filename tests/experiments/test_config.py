"""Every config composes, and what is wrong is refused with key, value and what would be allowed."""

import json
import re
from dataclasses import asdict, replace
from typing import Any

import pandas as pd
import pytest
import torch

from experiments.config import CONFIGS, load, presets
from experiments.config import run as run_config
from experiments.errors import UserError
from experiments.single_run import adaptive_batch as adaptive
from experiments.sweep.driver import run_sweep
from experiments.tasks import TASKS, describe, frames_per_example

RL_DOC = "docs/reinforcement.md"


@pytest.mark.parametrize(("task", "preset"), [(task, preset) for task in TASKS for preset in presets(task)])
def test_every_config_composes(task, preset):
    suite = load([f"task={task}", f"preset={preset}"])
    assert suite.name == f"{task}-{'small' if suite.experiment else preset}"
    assert suite.experiment in (None, preset)
    for size in suite.sweep.batch_sizes:
        run = suite.point(size, 0.1, 0)
        assert run.batch_size == size and run.max_steps >= suite.sweep.steps_budget


def test_every_task_has_its_file_and_its_presets():
    assert {path.stem for path in (CONFIGS / "task").glob("*.yaml")} == set(TASKS)
    assert {path.name for path in (CONFIGS / "task").iterdir() if path.is_dir()} == set(TASKS)
    assert all("smoke" in presets(task) for task in TASKS)
    groups = {path.relative_to(CONFIGS).parts[0] for path in CONFIGS.rglob("*.yaml")}
    assert groups == {"config.yaml", "cluster", "hydra", "preset", "sweep", "task"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("task=digts", r"task=digts: no such choice; allowed: .*digits"),
        ("preset=tiny", r"preset=tiny: no such choice; allowed: .*paper, small, smoke"),
        ("task.chanels=[3,4]", r"task\.chanels: no such key; did you mean channels\? allowed: .*channels"),
        ("learning_rate=0.1", r"learning_rate: no such key; .*allowed: .*lr"),
        ("lr=-1", r"lr=-1: .*greater than 0"),
        ("seed=a", r"seed='a': .*integer"),
        ("task.channels=[0,32]", r"task\.channels.*=0: .*greater than 0"),
        ("optimizer.name=sdg", r"optimizer\.name='sdg': .*'sgd', 'momentum', 'adam', 'rmsprop' or 'rmsprop_tf'"),
        ("optimizer.momentum=0.9", r"optimizer: sgd has no momentum"),
        ("optimizer.name=adam", r"optimizer: adam needs beta1 and eps"),
        ("micro_batch=48", r"micro_batch=48 does not divide batch_size=64"),
        ("sweep.goals=[0.1,0.2]", r"sweep\.goals=\[0\.1, 0\.2\]: .*must be falling"),
        ("lr_cuts=[0.1,0.2]", r"lr_cuts=\[0\.1, 0\.2\]: .*must be falling"),
        ("stop_metric=0.5", r"stop_metric=0\.5 .*allowed: at most 0\.01"),
        ("device=gpu", r"device=gpu: no such device; allowed: cpu"),
        ("sweep.batch_sizes=[64,64]", r"sweep\.batch_sizes=\[64, 64\]: a batch size stands there twice"),
        ("sweep.points=4", r"sweep\.points=4: allowed: an odd number"),
        ("optimiser.name=adam", r"optimiser: no such key; did you mean optimizer\? allowed: .*task"),
        ("=3", r"override must be"),
        ("measure.probe_parts=5", r"measure\.probe_parts=5 does not divide measure\.probe_examples=64"),
    ],
)
def test_refusals_name_key_value_and_way_out(override, expected):
    with pytest.raises(UserError) as refused:
        load(["task=digits", "preset=small", override])
    message = str(refused.value)
    assert re.search(expected, message), message
    assert len(message.splitlines()) <= 2


def test_a_preset_that_a_task_lacks_is_named_with_those_it_has():
    with pytest.raises(UserError, match=r"preset=paper: cartpole has no such preset; allowed: small, smoke"):
        load(["task=cartpole", "preset=paper"])


@pytest.mark.parametrize(
    ("task", "preset", "run_id", "version"),
    [
        ("svhn", "local_noise", "svhn-746aade82af7b7f1", 1),
        ("svhn", "temperature", "svhn-e66eb971458d3024", 1),
        ("svhn_adam", "autocorrelation", "svhn_adam-c2e3f07a3f689c07", 2),
    ],
)
def test_presets_of_single_runs_are_those_behind_the_committed_tables(task, preset, run_id, version, monkeypatch):
    monkeypatch.setattr(run_config, "RECORD_VERSION", version)
    suite = load([f"task={task}", f"preset={preset}", "results=results/reference"])
    assert suite.point(suite.run.batch_size, suite.run.lr, suite.run.seed).run_id == run_id
    assert (suite.tables / f"{preset}.csv").exists()
    goals = pd.read_csv(suite.tables / f"{preset}.csv")["goal"].drop_duplicates()
    assert tuple(goals) == suite.sweep.goals


def test_the_preset_of_adaptive_batch_sizes_is_the_one_behind_the_committed_tables():
    suite = load(["task=svhn", "preset=adaptive", "results=results/reference"])
    jobs = adaptive.plan(suite, adaptive.AdaptiveConfig())
    assert min(job.run_id for job in jobs) == "svhn-22e31efcb24fa7a5"
    runs = pd.read_csv(suite.tables / "adaptive_runs.csv")
    assert {(job.r, job.run.lr, job.run.seed) for job in jobs} == set(
        zip(runs["r"], runs["lr"], runs["seed"], strict=True)
    )
    assert set(runs["goal"]) == set(suite.sweep.goals)


def test_presets_of_single_runs_are_named_with_the_others_and_no_sweep():
    with pytest.raises(UserError, match=r"preset=local_noise: svhn_adam has no such preset; .*autocorrelation, paper"):
        load(["task=svhn_adam", "preset=local_noise"])
    with pytest.raises(UserError, match=r"experiments\.cli\.temperature task=svhn preset=temperature"):
        run_sweep(load(["task=svhn", "preset=temperature"]), lambda shares: None)


def test_a_batch_larger_than_the_data_without_replacement_is_refused():
    overrides = ["task=digits", "sweep.batch_sizes=[2048]"]
    load(overrides)
    with pytest.raises(UserError, match=r"batch_size=2048 is larger than the data \(1500 images\)"):
        load([*overrides, "task.replacement=false"])


def test_a_probe_larger_than_the_data_without_replacement_is_refused():
    overrides = ["task=digits", "measure.probe_examples=4096"]
    load(overrides)
    with pytest.raises(UserError, match=r"measure\.probe_examples=4096 is larger than the data \(1500 images\)"):
        load([*overrides, "task.replacement=false"])


def test_a_floor_that_meets_a_goal_is_refused_before_anything_trains():
    acrobot = ["task=cartpole", "task.env_id=Acrobot-v1", "sweep.goals=[-400,-200,-100]", "stop_metric=-100"]
    load([*acrobot, "task.floor=-500"])
    with pytest.raises(
        UserError, match=r"task\.floor=0, .*already meets the goal -400; allowed: below -400.* Acrobot-v1"
    ):
        load(acrobot)


def test_the_documented_experiments_on_single_runs_compose():
    documented = (CONFIGS.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
    commands = re.findall(r"\.venv/bin/python -m experiments\.cli\.(\w+) (task=[^`\n]*)", documented)
    assert len(commands) == 5
    for module, arguments in commands:
        assert load(arguments.split()).experiment in (module, None)


def test_the_documented_sweep_of_another_environment_composes():
    (command,) = re.findall(r"make sweep TASK=(\w+) ARGS='(task\.env_id=.*?)'", (CONFIGS.parent / RL_DOC).read_text())
    load([f"task={command[0]}", *command[1].split()])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "micro_batch=16",
            r"micro_batch=16 cannot be cut into ghost batches of task\.ghost_batch=32; .* multiples of 32",
        ),
        ("sweep.batch_sizes=[16,64,128,256]", r"batch_size=16 cannot be cut"),
        ("batch_size=80", r"batch_size=80 cannot be cut"),
        ("measure.probe_parts=8", r"probe_parts=16 cannot be cut"),
        ("task.ghost_batch=24", r"batch_size=32 cannot be cut into ghost batches of task\.ghost_batch=24"),
    ],
)
@pytest.mark.parametrize("task", ["cifar10", "imagenet"])
def test_pieces_of_a_batch_are_whole_ghost_batches(task, override, expected):
    load([f"task={task}", "preset=small", "task.ghost_batch=16"])
    load([f"task={task}", "preset=small", override, "task.norm=group", "micro_batch=16"])
    with pytest.raises(UserError, match=expected):
        load([f"task={task}", "preset=small", override])


SMALL = {
    "quadratic": "",
    "digits": "two convolutions of 16 and 32 channels and a dense layer",
    "mnist": "CNN, convolutions of 8 and 16 channels, 256 dense units, stride 2 "
    "(the paper's: 32 and 64, 1,024, pooling)",
    "cifar10": "ResNet-8 of 8 channels, stem of stride 2, batch normalisation over 32 images "
    "(the paper's: ResNet-32 of 16 channels, stem of stride 1)",
    "svhn_vae": "three convolutions from 12 channels to a code of 64, four from there to the image "
    "(InfoGAN's: from 64 channels; a code of 128)",
    "lm_transformer": "transformer of 2 layers, 64 wide, 4 heads",
    "cartpole": "two layers of 64 tanh units",
    "pong": "DQN's network of 2013: two convolutions of 16 and 32 channels, 256 dense units",
}


@pytest.mark.parametrize("task", SMALL)
def test_a_recorded_config_says_its_network(task):
    recorded = json.loads(json.dumps(asdict(load([f"task={task}"]).run.task)))
    assert describe(recorded) == SMALL[task]


@pytest.mark.parametrize("task", ["svhn", "cifar10", "imagenet", "svhn_autoencoder"])
def test_the_papers_network_is_not_compared_with_itself(task):
    said = describe(asdict(load([f"task={task}", "preset=paper"]).run.task))
    assert said and "paper's" not in said and "InfoGAN's" not in said


@pytest.mark.parametrize(
    ("task", "frames"), [("pong", 4), ("pong_ppo", 1), ("pong_selfplay", 4), ("cartpole", None), ("svhn", None)]
)
def test_a_recorded_config_says_what_an_example_is_in_frames(task, frames):
    assert frames_per_example(asdict(load([f"task={task}"]).run.task)) == frames


def test_the_run_id_is_the_science():
    suite = load(["task=digits"])
    same = load(["task=digits", "results=elsewhere", "runs=elsewhere", "threads=2", "cluster.workers=7"])
    assert suite.run.run_id == same.run.run_id
    changes = [
        {"batch_size": 32},
        {"lr": 0.11},
        {"seed": 1},
        {"max_steps": 7},
        {"micro_batch": 32},
        {"task": replace(suite.run.task, channels=(16, 31))},
        {"measure": replace(suite.run.measure, evaluations_per_octave=5)},
    ]
    ids = {replace(suite.run, **change).run_id for change in changes}
    assert len(ids) == len(changes) and suite.run.run_id not in ids


def test_the_run_id_knows_no_device_and_no_ranks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "4")
    here, there = (load(["task=svhn", "preset=smoke", f"device={device}"]) for device in ("cpu", "cuda:1"))
    assert here.device != there.device and here.run.run_id == there.run.run_id


def test_streams_differ_by_seed_and_batch_size_and_not_by_learning_rate():
    run = load(["task=digits"]).run

    def drawn(**changes: Any) -> list[float]:
        return torch.rand(4, generator=replace(run, **changes).stream("batches")).tolist()

    assert drawn() == drawn() == drawn(lr=0.7)
    assert len({tuple(drawn(batch_size=size, seed=seed)) for size in (8, 16) for seed in (0, 1)}) == 4
