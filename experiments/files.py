"""Files that are whole or not there, whoever is killed while writing: written aside, synced and renamed; and locks."""

import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from experiments.errors import UserError

RESTORE = "restore it (from git, if it is there), or move its folder away: tables are made again from records"
GO_ON = "finished runs are kept, and the same command goes on"


def write_atomically(path: Path, content: bytes) -> None:
    """All of `content` at `path`, or what was there before; `UserError` where it cannot be written."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {GO_ON}") from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def clear_asides(folder: Path, *names: str) -> None:
    """What writers of the files of these names left when they were killed; for who alone may write them now."""
    for name in names:
        for aside in folder.glob(f".{name}.*"):
            aside.unlink(missing_ok=True)


def take_lock(path: Path) -> TextIO:
    """Wait until no other process holds the lock file at `path`, then hold it until the result is closed; the kernel
    lets go where the process dies. `OSError` where it can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """The lock file at `path`, held inside; `UserError` where it can't be written."""
    try:
        file = take_lock(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {GO_ON}") from error
    with file:
        yield


def write_parquet(path: Path, table: pd.DataFrame, **options: Any) -> None:
    """A table as Parquet, atomically, with `options` of `pyarrow.parquet.write_table`."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False, **options)
    write_atomically(path, buffer.getvalue())


def read_parquet(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """A table, read at one go, since it may be replaced at any time; `UserError` where that can't be done."""
    try:
        return pd.read_parquet(io.BytesIO(path.read_bytes()), columns=columns)
    except Exception as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip().splitlines()[0]
        raise UserError(f"{path} can't be read: {why}; {RESTORE}") from error
