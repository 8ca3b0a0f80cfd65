"""From YAML to frozen dataclasses, and every check that can be made before anything trains.

`load(overrides)` composes `configs/` with Hydra and returns a `SuiteConfig`; whatever is wrong is one `UserError` that
names key, value and what would be allowed. A `RunConfig` holds all that decides a run's numbers and nothing else, so
its hash names the run.
"""

import difflib
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from experiments.errors import UserError
from experiments.tasks import TASKS

CONFIGS = Path(__file__).parent.parent / "configs"
RECORD_VERSION = 2

frozen = dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0, lt=2**63)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]


def _task_config(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name = value.get("name")
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; tasks: {', '.join(TASKS)}")
    return _adapter(TASKS[name][0]).validate_python(value)


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@frozen
class OptimizerConfig:
    """`clip` bounds the norm of the batch's gradient, after the noise scale has seen it. The others belong to one
    optimizer each; `rmsprop_tf` is TensorFlow's RMSProp (`experiments.training.tensorflow_rmsprop`).

    `beta2_half_life` (in the task's unit) sets Adam's β₂ = ½^(B / half-life), in place of `beta2`.
    """

    name: Literal["sgd", "momentum", "adam", "rmsprop", "rmsprop_tf"]
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    beta1: Annotated[float, Field(ge=0, lt=1)] | None = None
    beta2: Annotated[float, Field(ge=0, lt=1)] | None = None
    beta2_half_life: Positive | None = None
    alpha: Annotated[float, Field(ge=0, lt=1)] | None = None
    eps: Positive | None = None
    clip: Positive | None = None

    @model_validator(mode="after")
    def _fields_fit_name(self) -> "OptimizerConfig":
        rmsprop = ("alpha", "eps")
        wanted = {"momentum": ("momentum",), "adam": ("beta1", "eps"), "rmsprop": rmsprop, "rmsprop_tf": rmsprop}.get(
            self.name, ()
        )
        either = ("beta2", "beta2_half_life") if self.name == "adam" else ()
        given = [f.name for f in fields(self) if f.name not in ("name", "clip") and getattr(self, f.name) is not None]
        missing = [key for key in wanted if key not in given]
        if missing:
            raise ValueError(f"{self.name} needs {' and '.join(missing)}")
        if either and sum(key in given for key in either) != 1:
            raise ValueError("adam takes beta2 or beta2_half_life, one of the two")
        foreign = [key for key in given if key not in (*wanted, *either)]
        if foreign:
            raise ValueError(f"{self.name} has no {', '.join(foreign)}; leave it null")
        return self


@frozen
class MeasureConfig:
    """How often to look: evaluations for each doubling of the steps; the running B_simple forgets half in `half_life`
    steps. Where the batch is a single micro-batch, a probe of `probe_examples` (in the task's unit) in `probe_parts`
    parts is taken so often that probes are at most `probe_share` of all examples. `curvature` adds B_noise.
    """

    evaluations_per_octave: Count = 6
    half_life: Positive = 20.0
    probe_examples: Count = 64
    probe_parts: Annotated[int, Field(ge=2)] = 4
    probe_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    curvature: bool = False


@frozen
class RunConfig:
    """All that decides a run's numbers. `batch_size` and `micro_batch` count the task's unit.

    The run ends once the metric has been at `stop_metric` or better for `stop_patience` evaluations in a row, or at
    `max_steps`. `lr` is divided by ten whenever the mean of the last `stop_patience` evaluations passes the next of
    `lr_cuts` (`experiments.analysis.spans`).
    """

    task: Annotated[Any, BeforeValidator(_task_config)]
    optimizer: OptimizerConfig
    measure: MeasureConfig
    batch_size: Count
    micro_batch: Count
    lr: Positive
    seed: Natural
    max_steps: Count
    stop_metric: float | None
    stop_patience: Count = 3
    lr_cuts: tuple[float, ...] | None = None

    @property
    def run_id(self) -> str:
        """Task and hash of the whole config: equal ids mean equal science. What is null is left out, so that a new
        option that old runs didn't have doesn't rename them.
        """
        return run_id_of(asdict(self))

    def stream(self, purpose: str) -> torch.Generator:
        """Random numbers for `purpose`, independent between seeds and batch sizes, and equal between learning rates, so
        that these are compared on the same examples. On the CPU, so that every device sees the same ones."""
        key = f"{purpose} {self.seed} {self.batch_size}"
        return torch.Generator().manual_seed(int(hashlib.sha256(key.encode()).hexdigest()[:15], 16))

    @property
    def micro_size(self) -> int:
        """Units in one micro-batch of this run."""
        return min(self.micro_batch, self.batch_size)


def run_id_of(config: Mapping[str, Any]) -> str:
    """`run_id` of a run whose config is this, as it is or as it was written to JSON."""
    content = json.dumps(_given({**config, "record_version": RECORD_VERSION}), sort_keys=True)
    return f"{config['task']['name']}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


@frozen
class SweepConfig:
    """Batch sizes, each with a learning-rate grid lr·(1 + noise/B)^-alpha · ratio^j, j = −points//2 … points//2,
    widened by up to `widen` points a side while the best lies on an edge. A run has at most
    `steps_budget` · (1 + budget_noise/B) steps, with `noise` for `budget_noise` where that is null.
    """

    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)]
    seeds: Count
    goals: Annotated[tuple[float, ...], Field(min_length=1)]
    lr: Positive
    noise: Positive
    alpha: Annotated[float, Field(ge=0, le=1)]
    ratio: Annotated[float, Field(gt=1)]
    points: Count
    widen: Annotated[int, Field(ge=0)]
    steps_budget: Positive
    budget_noise: Positive | None


@frozen
class ClusterConfig:
    """Where runs go. Short ones share a job until it holds about `job_seconds` of work. A run that takes longer than
    `run_seconds` counts as failed. `workers` belongs to local and Ray, `gpus` to Slurm (a job) and Ray (a run), the
    rest to Slurm, where null means what the cluster says.
    """

    name: Literal["local", "slurm", "ray"]
    workers: Count | None
    job_seconds: Positive
    run_seconds: Positive | None = None
    partition: str | None = None
    account: str | None = None
    minutes: Count | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    cpus: Count | None = None
    memory_gb: Count | None = None
    parallel: Count | None = None


@frozen
class SuiteConfig:
    """The composed config of one sweep, and where its files are."""

    preset: str
    run: RunConfig
    sweep: SweepConfig
    cluster: ClusterConfig
    points: tuple[tuple[Count, Positive, Annotated[int, Field(ge=0)]], ...] | None
    device: str
    threads: Count
    results: Annotated[str, Field(min_length=1)]
    runs: Annotated[str, Field(min_length=1)]
    reference: Annotated[str, Field(min_length=1)]
    from_reference: bool
    dry: bool
    checkpoint_seconds: Positive
    experiment: str | None = None

    @property
    def name(self) -> str:
        """Of the sweep, and of its folder in `results`."""
        return f"{self.run.task.name}-{self.preset}"

    @property
    def tables(self) -> Path:
        """The folder of its tables."""
        return Path(self.results) / self.name

    @property
    def reference_tables(self) -> Path:
        """The folder of the reference's tables, which may not be there."""
        return Path(self.reference) / self.name

    @property
    def records(self) -> Path:
        """The folder of the runs' records."""
        return Path(self.runs) / self.name

    def point(self, batch_size: int, lr: float, seed: int) -> RunConfig:
        """The run of the sweep at this batch size, learning rate and seed."""
        noise = self.sweep.budget_noise or self.sweep.noise
        steps = math.ceil(self.sweep.steps_budget * (1 + noise / batch_size))
        return replace(self.run, batch_size=batch_size, lr=lr, seed=seed, max_steps=steps)


def load(overrides: Sequence[str]) -> SuiteConfig:
    """Compose and check; `UserError` for whatever a user can have got wrong."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
        try:
            composed = compose("config", list(overrides))
            return parse(composed)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(_explain(error, overrides)) from None


def task_and_preset(name: str) -> tuple[str, str]:
    """The two of a file in `configs/task_preset/`."""
    task = max((task for task in TASKS if name.startswith(f"{task}_")), key=len)
    return task, name.removeprefix(f"{task}_")


def parse(composed: DictConfig) -> SuiteConfig:
    """The dataclasses behind a composed config, checked."""
    ours = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    tree = OmegaConf.to_container(ours, resolve=True)
    assert isinstance(tree, dict)
    run_keys = [field.name for field in fields(RunConfig)]
    tree["run"] = {key: tree.pop(key) for key in run_keys if key in tree}
    try:
        suite = TypeAdapter(SuiteConfig).validate_python(tree)
    except ValidationError as error:
        raise UserError("\n".join(_line(detail) for detail in error.errors())) from None
    check(suite)
    return suite


def check(suite: SuiteConfig) -> None:
    """What no single field can know."""
    run, sweep = suite.run, suite.sweep
    _, build = TASKS[run.task.name]
    metric, unit = build.metric, build.unit  # type: ignore[attr-defined]
    sample = getattr(run.task, "sample_size", None) or build.sample_size  # type: ignore[attr-defined]
    try:
        device = torch.device(suite.device)
    except RuntimeError:
        raise UserError(f"device={suite.device}: no such device; allowed: cpu, cuda, cuda:0, …") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={suite.device}: PyTorch sees no GPU here; allowed: cpu")
    if device.type != "cpu" and getattr(build, "on_cpu_only", False):
        raise UserError(f"device={suite.device}: the games of {run.task.name} are played on the CPU; allowed: cpu")
    if len(set(sweep.batch_sizes)) < len(sweep.batch_sizes):
        raise UserError(f"sweep.batch_sizes={list(sweep.batch_sizes)}: a batch size stands there twice")
    if sweep.points % 2 == 0:
        raise UserError(f"sweep.points={sweep.points}: allowed: an odd number, one and as many on each side of it")
    sizes = {*sweep.batch_sizes, run.batch_size, *(point[0] for point in suite.points or ())}
    for size in sorted(sizes):
        if size % min(run.micro_batch, size):
            raise UserError(
                f"micro_batch={run.micro_batch} does not divide batch_size={size}; "
                "allowed: a divisor of every batch size above it"
            )
        if size % sample or min(run.micro_batch, size) % sample:
            raise UserError(
                f"batch_size={size}, micro_batch={run.micro_batch}: {run.task.name} counts {unit}s, "
                f"{sample} to a sample; allowed: multiples of {sample}"
            )
    _check_ghost_batches(run, sizes)
    without, limit = not getattr(run.task, "replacement", True), getattr(run.task, "dataset_size", None)
    if without and limit is not None and max(sizes) > limit:
        raise UserError(
            f"batch_size={max(sizes)} is larger than the data ({limit} {unit}s) without replacement; "
            "allowed: task.replacement=true or smaller batches"
        )
    if without and limit is not None and run.measure.probe_examples > limit:
        raise UserError(
            f"measure.probe_examples={run.measure.probe_examples} is larger than the data ({limit} {unit}s) without "
            f"replacement; allowed: task.replacement=true or at most {limit}"
        )
    for key, values in (("sweep.goals", sweep.goals), ("lr_cuts", run.lr_cuts or ())):
        for easy, hard in pairwise(values):
            if not metric.better(hard, easy) or hard == easy:
                way = "falling" if metric.direction == "min" else "rising"
                raise UserError(f"{key}={list(values)}: {hard:g} after {easy:g}; {metric.name} goals must be {way}")
    floor = getattr(run.task, "floor", None)
    if floor is not None and metric.better(floor, sweep.goals[0]):
        raise UserError(
            f"task.floor={floor:g}, the {metric.name} until an episode has ended, already meets the goal "
            f"{sweep.goals[0]:g}; allowed: below {sweep.goals[0]:g}, best the lowest return of {run.task.env_id}"
        )
    if run.stop_metric is not None and not metric.better(run.stop_metric, sweep.goals[-1]):
        raise UserError(
            f"stop_metric={run.stop_metric:g} would end runs before the last goal {sweep.goals[-1]:g}; "
            f"allowed: {'at most' if metric.direction == 'min' else 'at least'} {sweep.goals[-1]:g}, or null"
        )
    parts, examples = run.measure.probe_parts, run.measure.probe_examples
    if examples % (parts * sample):
        raise UserError(
            f"measure.probe_parts={parts} does not divide measure.probe_examples={examples} into samples of {sample}; "
            f"allowed: multiples of {parts * sample} examples"
        )


def _check_ghost_batches(run: RunConfig, sizes: set[int]) -> None:
    """Batch normalisation sees whole ghost batches, whatever a batch is cut into; else cutting would change the run."""
    if getattr(run.task, "norm", None) != "batch":
        return
    ghost, probed = run.task.ghost_batch, run.measure.probe_examples // run.measure.probe_parts
    pieces = [("batch_size", size) for size in sorted(sizes)]
    pieces += [("micro_batch", run.micro_batch)] if run.micro_batch < max(sizes) else []
    for key, size in [*pieces, ("measure.probe_examples / measure.probe_parts", probed)]:
        if size % ghost:
            raise UserError(
                f"{key}={size} cannot be cut into ghost batches of task.ghost_batch={ghost}; "
                f"allowed: multiples of {ghost}, or task.norm=group"
            )


def _given(value: Any) -> Any:
    """Without what is null, at any depth."""
    if isinstance(value, Mapping):
        return {key: _given(part) for key, part in value.items() if part is not None}
    return value


def _line(detail: Any) -> str:
    """One line for one of pydantic's errors: key, value, what would be allowed."""
    place = [str(part) for part in detail["loc"]]
    key = ".".join(place[1:] if place[:1] == ["run"] else place)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "unexpected_keyword_argument":
        return f"{key}: no such key"
    if detail["type"] in ("missing", "missing_argument"):
        return f"{key}: missing"
    value = detail["input"]
    if detail["type"] == "tuple_type":
        return f"{key}={value!r}: allowed: a list, such as {key}=[{value}]"
    if detail["type"] in ("dataclass_type", "dataclass_exact_type"):
        return f"{key}={value!r}: {key} has keys of its own; set {key}.name=… or another of them"
    shown = "" if isinstance(value, dict) or not isinstance(value, int | float | str | bool | None) else f"={value!r}"
    return f"{key}{shown}: {message[:1].lower()}{message[1:]}"


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's complaint in one or two lines, with the nearest names that would be allowed."""
    text = " ".join(str(error).split())
    missing = re.search(r"In '[^']*': Could not find '([^']+)'", text) or re.search(r"Could not find '([^']+)'", text)
    if missing:
        group, _, option = missing.group(1).rpartition("/")
        allowed = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
        if group == "task_preset":
            task, preset = task_and_preset(option)
            allowed = [theirs for name, theirs in map(task_and_preset, allowed) if name == task]
            return f"preset={preset}: {task} has no such preset; allowed: {', '.join(allowed)}"
        return f"{group}={option}: no such choice; allowed: {', '.join(allowed)}"
    key = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text)
    if key:
        name = key.group(1) or key.group(2)
        chosen = [o for o in overrides if o.split("=")[0] in ("task", "preset", "cluster", "sweep")]
        base = compose("config", chosen, return_hydra_config=True)
        parent = OmegaConf.select(base, name.rpartition(".")[0]) if "." in name else base
        if not isinstance(parent, DictConfig):
            name, parent = name.partition(".")[0], base
        known = [str(k) for k in parent if k not in ("hydra", "_target_")]
        near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"{name}: no such key; {hint}allowed: {', '.join(known)}"
    return f"{text}: {str(error.__cause__).splitlines()[0]}" if str(error.__cause__ or "") else text
