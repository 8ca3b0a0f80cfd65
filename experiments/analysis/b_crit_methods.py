"""One table of the critical batch size by every method that a sweep's folder holds: `python -m experiments.cli.methods
results/reference/lm-small`.

The sweep (`fits.csv`), branching from one run, and the noise scale at the weights where the branches start, plain and
in the optimizer's metric (`branch_points.csv`), goal by goal.
"""

import math
from pathlib import Path

import pandas as pd

from experiments.errors import UserError

METHODS = {
    "sweep": ("fits.csv", "b_crit"),
    "branch": ("branch_points.csv", "b_branch"),
    "noise": ("branch_points.csv", "b_simple"),
    "noise_preconditioned": ("branch_points.csv", "b_simple_preconditioned"),
}


def methods(folder: Path) -> pd.DataFrame:
    """A row a (goal, method): `value`, `low`, `high`, and `over_branch`, the value over branching's.

    A `value` of inf says that even the largest batch tried was within the tolerance, which is then in `tried`;
    `over_branch` is then unknown.
    """
    tables = {name: folder / name for name, _ in METHODS.values()}
    for path, made_by in zip(tables.values(), ("`make sweep`", "`python -m experiments.cli.branch`"), strict=True):
        if not path.exists():
            raise UserError(f"no {path}; {made_by} writes it")
    read = {name: pd.read_csv(path).set_index("goal") for name, path in tables.items()}
    points = read["branch_points.csv"]
    rows = []
    for goal in points.index:
        for method, (name, column) in METHODS.items():
            if column not in read[name] or goal not in read[name].index:
                continue
            value, low, high = (float(read[name].loc[goal, f"{column}{end}"]) for end in ("", "_low", "_high"))
            branched = float(points.loc[goal, "b_branch"])
            over = value / branched if math.isfinite(value) and math.isfinite(branched) else math.nan
            tried = points.loc[goal, "largest"] if method == "branch" else math.nan
            row = {"goal": goal, "loss": points.loc[goal, "loss"], "method": method}
            rows.append(row | {"value": value, "low": low, "high": high, "tried": tried, "over_branch": over})
    return pd.DataFrame(rows)
