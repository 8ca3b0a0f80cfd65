"""How the modules that are commands are started, and what they say of a user's mistake."""

import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from experiments.config import SuiteConfig, load
from experiments.errors import UserError
from experiments.files import GO_ON
from experiments.tables.reading import REFERENCE, sweep_folders

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def told(command: Callable[[], object]) -> int:
    """The exit status of `command`: 0, or 2 after a user's mistake or on a full disk, which is a line on stderr."""
    try:
        command()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"{where}{error.strerror}; {GO_ON}", file=sys.stderr)
        return 2
    return 0


def where_from(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder of results that `from=` names, the reference without it, and the other arguments; `UserError` where
    no sweep has left tables there."""
    named = [argument.removeprefix("from=") for argument in arguments if argument.startswith("from=")]
    folder = Path(named[-1]) if named else REFERENCE
    if not sweep_folders(folder):
        raise UserError(f"no sweep's tables in {folder}; `make sweep` makes some")
    return folder, [argument for argument in arguments if not argument.startswith("from=")]


def start(arguments: Sequence[str], name: str, kind: type, measure: Callable[[SuiteConfig, Any], object]) -> int:
    """`python -m experiments.<name> task=… <name>.<key>=…`: `measure(suite, config)`. `<name>.<key>=value` goes to
    the dataclass `kind` and the rest to the suite."""
    own = [argument.removeprefix(f"{name}.") for argument in arguments if argument.startswith(f"{name}.")]
    rest = [argument for argument in arguments if not argument.startswith(f"{name}.")]
    return told(lambda: measure(load(rest), _parse(own, name, kind)))


def _parse(own: Sequence[str], name: str, kind: type) -> Any:
    try:
        return TypeAdapter(kind).validate_python(OmegaConf.to_container(OmegaConf.from_dotlist(list(own))))
    except ValidationError as error:
        detail = error.errors()[0]
        allowed = ", ".join(f"{name}.{field.name}" for field in fields(kind))
        raise UserError(f"{name}.{'.'.join(map(str, detail['loc']))}: {detail['msg']}; keys: {allowed}") from None
