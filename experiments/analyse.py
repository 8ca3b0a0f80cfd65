"""From a sweep's committed tables to its verdict: `python -m experiments.analyse results/digits-small [goal ...]`.

tables → crossings of each goal → best learning rate at each batch size → fit of S = S_min (1 + B_crit/B) → B_simple and
B_noise of the tuned runs beside it. Writes `crossings.csv` and `fits.csv` and prints the table.
"""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.crossings import cross
from experiments.errors import UserError
from experiments.fit import GoalFit, fit_goal, fits_frame
from experiments.goals import choose_goals
from experiments.layout import digits_for, rounded, text_table, with_interval
from experiments.tables import read_tables, write_csv
from experiments.tuning import grids
from experiments.verdict import FACTOR, judge_task

TERMINAL = 120


def analyse(folder: Path, goals: Sequence[float] | None = None) -> list[GoalFit]:
    """Fit every goal (chosen by `choose_goals` where None), write `crossings.csv` and `fits.csv` into `folder`,
    return the fits from easy to hard.

    Raises:
        UserError: no tables, tables of more than one experiment, or no goal that the runs reach.
    """
    tables = read_tables(folder)
    chosen = choose_goals(tables) if goals is None else list(dict.fromkeys(goals))
    if not chosen:
        raise UserError(
            f"{folder}: no goal was reached at enough batch sizes; name goals, or sweep more batch sizes or longer"
        )
    rows = cross(tables, chosen)
    diverged = set(tables.runs.loc[tables.runs["status"] == "diverged", "run_id"])
    fits, best = [], np.zeros(len(rows), bool)
    for goal in chosen:
        goal_rows = rows[rows["goal"] == goal]
        found = grids(goal_rows, diverged)
        winners = {grid.batch_size: grid.lrs[grid.best()] for grid in found}
        tuned = goal_rows[goal_rows["lr"] == goal_rows["batch_size"].map(winners)]
        best[tuned.index] = True
        fits.append(fit_goal(tables, goal, found, tuned))
    write_csv(rows.drop(columns="run_id").assign(best=best), folder / "crossings.csv")
    write_csv(fits_frame(fits), folder / "fits.csv")
    return fits


def format_table(fits: Sequence[GoalFit]) -> str:
    """The verdict for a terminal of 120 columns: a row a goal, 95% intervals in brackets, remarks below."""
    header = ["goal", "S_min", "E_min", "B_crit", "B_simple at goal", "averaged", "averaged/B_crit", "verdict", ""]
    rows: list[list[str]] = []
    notes: list[str] = []
    marks = 0
    for fit in fits:
        mark = ""
        if fit.remark:
            marks += 1
            mark = f"({marks})"
            notes += textwrap.wrap(f"{mark} {fit.remark}", TERMINAL, subsequent_indent="    ")
        rows.append(
            [
                f"{fit.goal:g}",
                rounded(fit.s_min.value, digits_for(fit.s_min)),
                rounded(fit.e_min.value, digits_for(fit.e_min)),
                *map(with_interval, (fit.b_crit, fit.b_simple, fit.b_simple_avg, fit.ratio)),
                fit.verdict,
                mark,
            ]
        )
    return "\n".join([text_table(header, rows), *notes, sentence(fits)])


def sentence(fits: Sequence[GoalFit]) -> str:
    """The task's verdict in one line."""
    counts = {
        verdict: sum(fit.verdict == verdict for fit in fits)
        for verdict in ("agree", "differ", "can't tell", "not determined")
    }
    told = ", ".join(f"{verdict} at {count}" for verdict, count in counts.items() if count)
    task = judge_task(fit.verdict for fit in fits)
    return f"Verdict: {task} within a factor of {FACTOR:g} ({told} of {len(fits)} goals)."


def main(arguments: Sequence[str]) -> int:
    """`python -m experiments.analyse FOLDER [GOAL ...]`; without goals, those of the `fits.csv` that is there."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    folder = Path(arguments[0])
    try:
        goals = [float(goal) for goal in arguments[1:]]
        if not goals and (folder / "fits.csv").exists():
            goals = pd.read_csv(folder / "fits.csv")["goal"].to_list()
        fits = analyse(folder, goals or None)
    except (UserError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(format_table(fits))
    print(f"Wrote {folder / 'crossings.csv'} and {folder / 'fits.csv'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
