"""A run on disk, and the rule that nothing is lost and nothing is half.

    runs/<sweep>/<run_id>/config.json       what was asked
                          curve.parquet     a row an evaluation; rewritten at every checkpoint
                          groups.parquet    a row an evaluation and group, where the task names groups of parameters
                          checkpoint.pt     until the run ends
                          error.txt         the last failure, if any
                          summary.json      written last: it *is* the done mark

Every file is written aside, synced and renamed, and checked by a hash when it is read back, which can execute no code.
A run is held by a lock while it trains, so that two sweeps on one folder share the work instead of doing it twice.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from experiments.config import Count, Natural, RunConfig, run_id_of
from experiments.errors import UserError
from experiments.files import GO_ON, clear_asides, exclusive, write_atomically, write_parquet
from experiments.training.curve import CURVE_COLUMNS, CURVE_SCHEMA, GROUPS_SCHEMA, PLAIN, read_table

SPOILT = "checkpoint.pt.spoilt"
HASH = b"\nsha256 "  # ends a checkpoint, where `torch.load` doesn't look; those of older versions have none
SEALED = ("config.json", "curve.parquet", "groups.parquet")


@dataclass(frozen=True)
class Summary:
    """How a run ended: `reached` its stop metric, `not_reached` within its budget, or `diverged`. What old records lack
    is None. `restarts`: how often its environments started anew as it was resumed; None where a task has none."""

    status: Literal["reached", "not_reached", "diverged"]
    step: Natural
    examples: Natural
    best_metric: float | None
    parameters: Count
    sample_size: Count
    data: str
    seconds: float
    eval_seconds: float
    measure_seconds: float
    device: str
    versions: str | None = None
    git_sha: str | None = None
    finished_at: str | None = None
    restarts: Natural | None = None


CONFIG, SUMMARY = TypeAdapter(RunConfig), TypeAdapter(Summary)


def records_in(folder: Path) -> list["RunRecord"]:
    """Of a sweep, by name; `UserError` where the folder can't be looked into."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if "-" in entry.name and entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; its records can't be read") from error
    return [RunRecord(folder / name) for name in names]


class RunRecord:
    """The folder of one run."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def run_id(self) -> str:
        return self.folder.name

    def start(self, config: RunConfig) -> None:
        """Write what is asked of the run, and clear what is left of a process that was killed here."""
        clear_asides(self.folder, *SEALED, "checkpoint.pt", "summary.json")
        (self.folder / "error.txt").unlink(missing_ok=True)
        self._write_json("config.json", asdict(config))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process trains this run, then hold it; the kernel lets go when the process dies."""
        with exclusive(self.folder / "lock"):
            yield

    def save_curve(self, rows: list[dict[str, Any]], group_rows: list[dict[str, Any]]) -> None:
        """The curve so far, and the groups' noise."""
        table = pd.DataFrame(rows, columns=list(CURVE_COLUMNS)).astype(CURVE_COLUMNS)
        write_parquet(self.folder / "curve.parquet", table, **PLAIN)
        if group_rows:
            write_parquet(self.folder / "groups.parquet", pd.DataFrame(group_rows))

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Tensors, numbers and strings only: it is read back with `weights_only`."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        write_atomically(self.folder / "checkpoint.pt", content + HASH + _sha256(content))

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        """The last checkpoint, or None: where there is none, or it is spoilt, the run starts over. A spoilt one is put
        aside."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; {GO_ON}") from error
        try:
            body, mark, digest = content.rpartition(HASH)
            if mark and digest != _sha256(body):
                raise ValueError(f"{path}: not what was written")
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception:
            self.put_aside()
            return None
        return state if device.type == "cpu" else torch.load(io.BytesIO(content), device, weights_only=True)

    def put_aside(self) -> None:
        """The checkpoint, which nothing can go on from."""
        (self.folder / "checkpoint.pt").replace(self.folder / SPOILT)

    def finish(self, rows: list[dict[str, Any]], group_rows: list[dict[str, Any]], summary: dict[str, Any]) -> None:
        """The curve, then the done mark with one hash over all files, then the scaffolding goes."""
        self.save_curve(rows, group_rows)
        summary = _no_nan(summary)
        files = {name: _bytes(f"{self.folder}/{name}") for name in SEALED}
        self._write_json("summary.json", {"sha256": _seal(summary, files), **summary})
        for name in ("checkpoint.pt", SPOILT, "error.txt"):
            (self.folder / name).unlink(missing_ok=True)

    def fail(self, message: str) -> None:
        """What stopped the run, for `status`."""
        write_atomically(self.folder / "error.txt", message.encode())

    def give_up(self, error: str) -> None:
        """Keep why the run failed, for `status`, where its process has left no word of it."""
        if not os.path.exists(f"{self.folder}/error.txt"):
            with suppress(UserError):
                self.fail(error)

    @property
    def claims_done(self) -> bool:
        """Whether there is a done mark, of whatever kind, or nobody can tell."""
        try:
            os.stat(f"{self.folder}/summary.json")
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def read(self) -> tuple[dict[str, Any], dict[str, Any], pd.DataFrame] | None:
        """(config, summary, curve) of a finished run, or None if it isn't finished or not what was written."""
        try:
            config, summary, curve, _ = self._read()
        except Exception:
            return None
        return config, summary, curve.to_pandas(use_threads=False)

    def is_done(self, run: RunConfig) -> bool:
        """Whether this is the finished record of `run`, and no other's under its name."""
        found = self.read()
        return found is not None and run_id_of(found[0]) == run.run_id

    def read_arrow(self) -> tuple[dict[str, Any], dict[str, Any], pa.Table, pa.Table | None] | None:
        """(config, summary, curve, groups' noise) of a finished run of a sweep, or None where it isn't finished, or is
        spoilt, renamed or of another record version. Three times as fast as `read`, where there are thousands."""
        try:
            found = self._read()
            return found if run_id_of(found[0]) == self.run_id else None
        except Exception:
            return None

    def read_summary(self) -> dict[str, Any] | None:
        """That of a record that `read_arrow` accepts, without a look into its tables, whose bytes its seal covers: so
        of tens of thousands in seconds."""
        try:
            config, summary, _ = self._unsealed()
            return summary if run_id_of(config) == self.run_id else None
        except Exception:
            return None

    def read_config(self) -> RunConfig | None:
        """What was asked of the run, finished or not."""
        try:
            return CONFIG.validate_json(_bytes(f"{self.folder}/config.json"), strict=True)
        except Exception:
            return None

    def _unsealed(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, bytes]]:
        """(config, summary, the files' bytes), if they are what the seal says and a run's; else an exception of
        whatever kind."""
        content = _bytes(f"{self.folder}/summary.json")
        files = {name: _bytes(f"{self.folder}/{name}") for name in SEALED}
        summary = json.loads(content)
        if summary.pop("sha256") != _seal(summary, files):
            raise ValueError(f"{self.folder}: not what was written")
        SUMMARY.validate_json(content, strict=True)
        CONFIG.validate_json(files["config.json"], strict=True)
        return json.loads(files["config.json"]), summary, files

    def _read(self) -> tuple[dict[str, Any], dict[str, Any], pa.Table, pa.Table | None]:
        """What is in the files, if it is a finished run's; else an exception of whatever kind."""
        config, summary, files = self._unsealed()
        curve = read_table(files["curve.parquet"], CURVE_SCHEMA)
        steps = curve["step"].to_numpy()
        if steps[0] < 0 or (np.diff(steps) <= 0).any():
            raise ValueError(f"{self.folder}: a curve's steps rise from 0 or more")
        groups = read_table(files["groups.parquet"], GROUPS_SCHEMA) if files["groups.parquet"] else None
        return config, summary, curve, groups

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
        write_atomically(self.folder / name, text.encode() + b"\n")


def _bytes(path: str) -> bytes:
    """Of a file, none where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _seal(summary: dict[str, Any], files: dict[str, bytes]) -> str:
    """One hash over summary, config, curve and groups."""
    digest = hashlib.sha256(json.dumps(summary, sort_keys=True).encode())
    for name in SEALED:
        digest.update(files[name])
    return digest.hexdigest()


def _no_nan(content: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a number that isn't one becomes null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in content.items()}
