"""One run: all that decides its numbers, so that the hash of its config names it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from experiments.tasks import TASKS

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
    `lr_cuts` (`experiments.training.learning_rate_cuts`).
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


def _given(value: Any) -> Any:
    """Without what is null, at any depth."""
    if isinstance(value, Mapping):
        return {key: _given(part) for key, part in value.items() if part is not None}
    return value
