"""How an experiment of its own is started: `python -m experiments.<name> task=… preset=… <name>.<key>=…`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from experiments.config import SuiteConfig, load
from experiments.errors import UserError


def run(arguments: Sequence[str], name: str, kind: type, measure: Callable[[SuiteConfig, Any], Any]) -> int:
    """`measure(suite, config)`; `<name>.<key>=value` goes to the dataclass `kind`, the rest to the suite. A user's
    mistake is a line on stderr and the exit status 2."""
    own = [argument.removeprefix(f"{name}.") for argument in arguments if argument.startswith(f"{name}.")]
    rest = [argument for argument in arguments if not argument.startswith(f"{name}.")]
    try:
        measure(load(rest), _parse(own, name, kind))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parse(own: Sequence[str], name: str, kind: type) -> Any:
    try:
        return TypeAdapter(kind).validate_python(OmegaConf.to_container(OmegaConf.from_dotlist(list(own))))
    except ValidationError as error:
        detail = error.errors()[0]
        allowed = ", ".join(f"{name}.{field.name}" for field in fields(kind))
        raise UserError(f"{name}.{'.'.join(map(str, detail['loc']))}: {detail['msg']}; keys: {allowed}") from None
