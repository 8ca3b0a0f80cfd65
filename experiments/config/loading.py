"""From YAML to the dataclasses: Hydra composes `configs/`, pydantic validates."""

from collections.abc import Sequence
from dataclasses import fields

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from experiments.config.checks import check
from experiments.config.presets import CONFIGS
from experiments.config.refusals import explain, explain_field
from experiments.config.run import RunConfig
from experiments.config.suite import SuiteConfig
from experiments.errors import UserError


def load(overrides: Sequence[str]) -> SuiteConfig:
    """Compose and check; `UserError` for whatever a user can have got wrong."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
        try:
            composed = compose("config", list(overrides))
            return parse(composed)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(explain(error, overrides)) from None


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
        raise UserError("\n".join(explain_field(detail) for detail in error.errors())) from None
    check(suite)
    return suite
