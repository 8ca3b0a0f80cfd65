"""The typed config, and every check that can be made before anything trains: `load(overrides)` composes `configs/` into
a `SuiteConfig`; whatever is wrong is one `UserError`. The fields of a task stand with the task, in `tasks`.
"""

from experiments.config.loading import load, parse
from experiments.config.presets import CONFIGS, presets
from experiments.config.run import (
    RECORD_VERSION,
    Count,
    Natural,
    OptimizerConfig,
    Positive,
    RunConfig,
    frozen,
    run_id_of,
)
from experiments.config.suite import SuiteConfig, SweepConfig

__all__ = [
    "CONFIGS",
    "RECORD_VERSION",
    "Count",
    "Natural",
    "OptimizerConfig",
    "Positive",
    "RunConfig",
    "SuiteConfig",
    "SweepConfig",
    "frozen",
    "load",
    "parse",
    "presets",
    "run_id_of",
]
