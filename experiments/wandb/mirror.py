"""Records → Weights & Biases, in a process of its own: nothing that W&B does, or fails to do, can touch a run.

`python -m experiments.wandb.mirror RUNS_FOLDER [GOAL ...]` follows a sweep and mirrors each run as one W&B run
(same id, grouped by sweep, config and curve in it) until its standard input is closed, then does what is left.
`WANDB_MODE` is `offline` where it isn't set, and from the first run on that W&B doesn't take within `ANSWER`
seconds. A run that is in W&B is marked by a file `mirrored` in its record, so this
can be stopped and started at will.
"""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.spans import steps_to
from experiments.config import SuiteConfig
from experiments.files import read_parquet, write_atomically
from experiments.tasks import TASKS
from experiments.wandb.sync import unsent
from noisescale.averaging import plotted

PATIENCE = 0.05  # of a sweep's time, that it waits for W&B at its end
PAUSE = 2.0
ANSWER = 20.0


@contextmanager
def mirrored(suite: SuiteConfig) -> Iterator[None]:
    """Follow the sweep while the body runs, at the lowest priority; wait for the rest a while, then let it finish
    alone.
    """
    mode = os.environ.get("WANDB_MODE", "offline")
    if mode == "disabled":
        yield
        return
    try:
        process = _start(suite)
    except OSError as error:
        print(f"nothing goes to W&B: {suite.records}/wandb.log: {error.strerror}", flush=True)
        yield
        return
    assert process.stdin is not None
    started = time.monotonic()
    try:
        yield
    finally:
        process.stdin.close()
    try:
        process.wait(PATIENCE * (time.monotonic() - started))
    except subprocess.TimeoutExpired:
        print(f"W&B is behind; it goes on in the background ({suite.records}/wandb.log)")
    if mode != "offline" and unsent(suite.records):
        print(f"W&B took no runs; they wait for `make wandb-sync` ({suite.records}/wandb.log)")


def _start(suite: SuiteConfig) -> subprocess.Popen[bytes]:
    suite.records.mkdir(parents=True, exist_ok=True)
    with open(suite.records / "wandb.log", "a") as log:
        goals = [str(goal) for goal in suite.sweep.goals]
        command = [sys.executable, "-m", "experiments.wandb.mirror", str(suite.records), *goals]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)


class Mirror:
    """The W&B runs of one sweep's records."""

    def __init__(self, records: Path, goals: Sequence[float]):
        import wandb

        self.wandb, self.records, self.goals = wandb, records, goals
        self.open: dict[Path, tuple[Any, int]] = {}
        for mark in records.glob("*-*/mirrored"):
            if mark.read_bytes().startswith(b"failed"):
                mark.unlink()  # once more

    def look(self) -> None:
        """Log what is new: rows of running runs since their last checkpoint, finished runs in full."""
        for folder in sorted(self.records.glob("*-*")):
            if (folder / "curve.parquet").exists() and not (folder / "mirrored").exists():
                try:
                    self._log(folder)
                except Exception as error:
                    print(f"{folder.name}: {type(error).__name__}: {error}", flush=True)
                    write_atomically(folder / "mirrored", f"failed: {error}\n".encode())
                    self.open.pop(folder, None)

    def _log(self, folder: Path) -> None:
        done = (folder / "summary.json").exists()
        curve = read_parquet(folder / "curve.parquet")
        run, logged = self.open.get(folder) or (self._start(folder), 0)
        for row in curve.iloc[logged:].to_dict("records"):
            run.log(_plotted(row), step=int(row["step"]))
        self.open[folder] = run, max(logged, len(curve))
        if done:
            config = json.loads((folder / "config.json").read_text())
            run.summary.update(json.loads((folder / "summary.json").read_text()) | self._reached(config, curve))
            run.finish()
            del self.open[folder]
            write_atomically(folder / "mirrored", b"done\n")

    def _reached(self, config: dict[str, Any], curve: pd.DataFrame) -> dict[str, float]:
        """Steps and examples to each goal that was reached."""
        direction = TASKS[config["task"]["name"]][1].metric.direction  # type: ignore[attr-defined]
        cuts, patience = config.get("lr_cuts"), config["stop_patience"]
        found = zip(self.goals, *steps_to(curve, direction, self.goals, cuts, patience), strict=True)
        reached = {goal: float(steps) for goal, steps, is_reached in found if is_reached}
        examples = {f"examples_to_{goal:g}": steps * config["batch_size"] for goal, steps in reached.items()}
        return {f"steps_to_{goal:g}": steps for goal, steps in reached.items()} | examples

    def _start(self, folder: Path) -> Any:
        config = json.loads((folder / "config.json").read_text())
        settings = self.wandb.Settings(
            silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False, init_timeout=ANSWER
        )
        try:
            return self._init(folder, config, settings)
        except self.wandb.Error as error:
            if os.environ["WANDB_MODE"] == "offline":
                raise
            print(f"{error}; from here on offline, for `make wandb-sync`", flush=True)
            os.environ["WANDB_MODE"] = "offline"
            # Its client doesn't take a run again where it has failed, so with a new one (not the one this names).
            os.environ.pop("WANDB_SERVICE", None)
            os.execv(sys.executable, [sys.executable, "-m", "experiments.wandb.mirror", *sys.argv[1:]])

    def _init(self, folder: Path, config: dict[str, Any], settings: Any) -> Any:
        return self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "noisescale"),
            group=self.records.name,
            id=folder.name,
            name=f"B{config['batch_size']} lr{config['lr']:g} seed{config['seed']}",
            config=config | {"run_id": folder.name},
            dir=str(self.records),
            resume="allow",
            reinit="create_new",
            settings=settings,
        )


def _plotted(row: dict[str, float]) -> dict[str, float]:
    """A curve's row without its step and what isn't determined."""
    names = ("b_simple", "b_simple_low", "b_simple_high")
    shown = plotted(*(row[name] for name in names), determined=math.isfinite(row["b_simple_high"]))
    row = row | dict(zip(names, shown, strict=True))
    return {key: value for key, value in row.items() if key != "step" and math.isfinite(value)}


def main() -> int:
    """Until standard input is closed, and once more."""
    os.nice(19)
    os.environ.setdefault("WANDB_MODE", "offline")
    mirror = Mirror(Path(sys.argv[1]), [float(goal) for goal in sys.argv[2:]])
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        mirror.look()
    mirror.look()
    return 0


if __name__ == "__main__":
    sys.exit(main())
