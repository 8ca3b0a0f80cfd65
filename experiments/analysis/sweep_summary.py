"""One row a sweep: the numbers of Table 1 and Fig. 4, from the committed `fits.csv` and `runs.parquet`."""

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import pandas as pd

from experiments.analysis.goal_fit import UNKNOWN, GoalFit
from experiments.analysis.learning_rate_choice import Grid, grids
from experiments.analysis.verdict import SweepVerdict, in_words, judge_sweep
from experiments.errors import UserError
from experiments.tables.reading import Tables, read_tables, sweep_folders
from noisescale.pareto.fit import Estimate


@dataclass(frozen=True)
class SweepResult:
    """A sweep's tables, fits and `crossings.csv`. `start` and `end` are its easiest and hardest goal with a determined
    B_crit, or None.
    """

    tables: Tables
    fits: list[GoalFit]
    crossings: pd.DataFrame

    @property
    def name(self) -> str:
        return self.tables.folder.name

    @property
    def task(self) -> str:
        return self.tables.describe("task")

    @property
    def preset(self) -> str:
        return self.tables.describe("preset")

    @property
    def unit(self) -> str:
        return self.tables.describe("unit")

    @property
    def met(self) -> list[GoalFit]:
        """Those whose goal some tuned run reached."""
        best = self.crossings[self.crossings["best"] & self.crossings["reached"]]
        return [fit for fit in self.fits if (best["goal"] == fit.goal).any()]

    @property
    def determined(self) -> list[GoalFit]:
        return [fit for fit in self.fits if fit.b_crit_status == "determined"]

    @property
    def start(self) -> GoalFit | None:
        return next(iter(self.determined), None)

    @property
    def end(self) -> GoalFit | None:
        return next(reversed(self.determined), None)

    @property
    def b_crit_start(self) -> Estimate:
        return self.start.b_crit if self.start else UNKNOWN

    @property
    def b_crit(self) -> Estimate:
        return self.end.b_crit if self.end else UNKNOWN

    @property
    def b_simple_start(self) -> Estimate:
        return self.fits[0].b_simple_start

    @property
    def b_simple_avg(self) -> Estimate:
        """Averaged up to the hardest goal with a determined B_crit, or else the hardest goal."""
        return (self.end or self.fits[-1]).b_simple_avg

    @property
    def verdict(self) -> SweepVerdict:
        return judge_sweep([fit.verdict for fit in self.fits])

    @property
    def verdict_in_words(self) -> str:
        """By how many goals, and what the hardest says."""
        return in_words([fit.goal for fit in self.fits], [fit.verdict for fit in self.fits])

    def arrived(self, goal: float) -> pd.DataFrame:
        """The tuned runs that reached `goal`: columns run_id, batch_size, lr, seed, steps."""
        rows = self.crossings[(self.crossings["goal"] == goal) & self.crossings["best"] & self.crossings["reached"]]
        keys = ["batch_size", "lr", "seed"]
        return rows.loc[rows["steps"] > 0, [*keys, "steps"]].merge(self.tables.runs[["run_id", *keys]], on=keys)

    def grids(self, goal: float) -> list[Grid]:
        """The learning rates tried at each batch size, and how `goal` was reached with them."""
        runs = self.tables.runs
        keys = ["batch_size", "lr", "seed"]
        rows = self.crossings[self.crossings["goal"] == goal].merge(runs[["run_id", *keys]], on=keys)
        return grids(rows, set(runs.loc[runs["status"] == "diverged", "run_id"]))

    def config(self) -> dict:
        """The resolved config of one of the runs."""
        return json.loads(self.tables.describe("config"))


def read_sweep(folder: Path) -> SweepResult:
    """The committed tables of `folder`; `UserError` where they were not analysed yet."""
    path = folder / "fits.csv"
    if not path.exists():
        raise UserError(f"no {path}; run `python -m experiments.cli.analyse {folder}`")
    stamps = tuple((folder / name).stat().st_mtime_ns for name in ("runs.parquet", "fits.csv", "crossings.csv"))
    return _read_once(folder, stamps)


@cache
def _read_once(folder: Path, stamps: tuple[int, ...]) -> SweepResult:
    """Every figure asks for the sweeps; `stamps` are the files' times, so that changed files are read again."""
    del stamps
    return SweepResult(read_tables(folder), read_fits(folder / "fits.csv"), pd.read_csv(folder / "crossings.csv"))


def summarise(results: Path) -> list[SweepResult]:
    """Every analysed sweep below `results`, by name."""
    return [read_sweep(folder) for folder in sweep_folders(results) if (folder / "fits.csv").exists()]


def read_fits(path: Path) -> list[GoalFit]:
    """`fits.csv` as `goal_fit.fits_frame` made it."""
    frame = pd.read_csv(path, keep_default_na=False, na_values={c: [""] for c in _numeric(path)})
    if "design" not in frame:
        raise UserError(f"{path} is of an older version; run `python -m experiments.cli.analyse {path.parent}`")
    rows = []
    for record in frame.to_dict("records"):
        values = {}
        for field in fields(GoalFit):
            if field.type is Estimate:
                values[field.name] = Estimate(*(float(record[field.name + end]) for end in ("", "_low", "_high")))
            else:
                values[field.name] = record[field.name]
        rows.append(GoalFit(**values))
    return rows


def _numeric(path: Path) -> list[str]:
    return [c for c in pd.read_csv(path, nrows=0).columns if c not in ("b_crit_status", "verdict", "remark", "design")]
