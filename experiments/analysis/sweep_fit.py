"""From a sweep's committed tables to its verdict: `
`python -m experiments.cli.analyse results/reference/digits-small [goal ...]`.

tables → crossings of each goal (in its span, where the learning rate is cut: `experiments.analysis.spans`) → best
learning rate at each batch size → fit of S = S_min (1 + B_crit/B) → B_simple and B_noise of the tuned runs beside it.
Writes `crossings.csv` and `fits.csv` and prints the table.
"""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.analysis.crossings import cross
from experiments.analysis.goal_fit import GoalFit, fit_goal, fits_frame
from experiments.analysis.goals import choose_goals
from experiments.analysis.learning_rate_choice import grids
from experiments.analysis.spans import split
from experiments.analysis.verdict import FACTOR, in_words, judge_sweep
from experiments.errors import UserError
from experiments.tables.reading import read_tables, write_csv
from noisescale.formatting import table, with_interval
from noisescale.pareto.fit import Estimate

TERMINAL = 120


def analyse(folder: Path, goals: Sequence[float] | None = None, out: Path | None = None) -> list[GoalFit]:
    """Fit every goal (chosen by `choose_goals` where None), write `crossings.csv` and `fits.csv` into `out` (`folder`
    where None), return the fits from easy to hard. Goals that every tuned run meets at step 0 are named and left out.

    Raises:
        UserError: no tables, tables of more than one experiment, or no goal that the runs reach after step 0.
    """
    tables = read_tables(folder)
    chosen = choose_goals(tables) if goals is None else list(dict.fromkeys(goals))
    if not chosen:
        raise UserError(
            f"{folder}: no goal was reached at enough batch sizes; name goals, or sweep more batch sizes or longer"
        )
    parts = list(split(tables, chosen))
    rows = pd.concat([cross(part, goals) for part, goals in parts], ignore_index=True)
    diverged = set(tables.runs.loc[tables.runs["status"] == "diverged", "run_id"])
    fits, too_easy, best = [], [], np.zeros(len(rows), bool)
    for part, goal in ((part, goal) for part, goals in parts for goal in goals):
        goal_rows = rows[rows["goal"] == goal]
        found = grids(goal_rows, diverged)
        winners = {grid.batch_size: grid.lrs[grid.best()] for grid in found}
        tuned = goal_rows[goal_rows["lr"] == goal_rows["batch_size"].map(winners)]
        if (tuned["steps"] <= 0).all():
            too_easy.append(goal)
            continue
        best[tuned.index] = True
        fits.append(fit_goal(part, goal, found, tuned))
    if too_easy:
        said = f"{tables.describe('metric')} {', '.join(f'{goal:g}' for goal in too_easy)} is already met at step 0"
        if not fits:
            raise UserError(f"{folder}: {said}; choose harder goals")
        print(f"{folder}: {said}, and left out", file=sys.stderr)
    write_csv(rows.drop(columns="run_id").assign(best=best), (out or folder) / "crossings.csv")
    write_csv(fits_frame(fits), (out or folder) / "fits.csv")
    return fits


def format_table(fits: Sequence[GoalFit], unit: str, frames: float | None = None) -> str:
    """For a terminal of 120 columns: the fit and the verdict of every goal, 95% intervals in brackets, remarks
    below. With `frames`, those of a game that a `unit` stands for, what counts units is given in them too."""
    fitted = ["goal", "S_min (steps)", f"E_min ({unit}s)", f"B_crit ({unit}s)", ""]
    judged = ["goal", f"B_simple at goal ({unit}s)", f"B_simple averaged ({unit}s)", "averaged/B_crit", "verdict"]
    rows: tuple[list[list[str]], list[list[str]]] = ([], [])
    notes: list[str] = []
    marks = 0
    for fit in fits:
        mark = ""
        remark = "; ".join(filter(None, (fit.remark, fit.design)))
        if remark:
            marks += 1
            mark = f"({marks})"
            notes += textwrap.wrap(f"{mark} {remark}", TERMINAL, subsequent_indent="    ")
        goal = f"{fit.goal:g}"
        rows[0].append([goal, *map(with_interval, (fit.s_min, fit.e_min, fit.b_crit)), mark])
        rows[1].append([goal, *map(with_interval, (fit.b_simple, fit.b_simple_avg, fit.ratio)), fit.verdict])
    in_frames = [_in_frames(fits, frames), ""] if frames else []
    return "\n".join([table(fitted, rows[0]), "", *in_frames, table(judged, rows[1]), "", *notes, sentence(fits)])


def _in_frames(fits: Sequence[GoalFit], frames: float) -> str:
    rows = []
    for fit in fits:
        scaled = (Estimate(e.value * frames, e.low * frames, e.high * frames) for e in (fit.e_min, fit.b_crit))
        rows.append([f"{fit.goal:g}", *map(with_interval, scaled)])
    return table(["goal", "E_min (frames)", "B_crit (frames)"], rows)


def sentence(fits: Sequence[GoalFit]) -> str:
    """The sweep's verdict in one line."""
    verdicts = [fit.verdict for fit in fits]
    said = in_words([fit.goal for fit in fits], verdicts)
    return f"Verdict: {judge_sweep(verdicts)} within a factor of {FACTOR:g} ({said})."
