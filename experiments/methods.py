"""One table of the critical batch size by every method that a sweep's folder holds: `python -m experiments.methods
results/lm-small`.

The sweep (`fits.csv`), branching from one run, and the noise scale at the weights where the branches start, plain and
in the optimizer's metric (`branch_points.csv`), goal by goal.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.errors import UserError
from experiments.tables import write_csv

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
    for path, made_by in zip(tables.values(), ("`make sweep`", "`python -m experiments.branch`"), strict=True):
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


def main(arguments: Sequence[str]) -> int:
    """Print the table and write `methods.csv` beside the others."""
    try:
        if len(arguments) != 1:
            raise UserError("one folder of results wanted: python -m experiments.methods results/lm-small")
        folder = Path(arguments[0])
        found = methods(folder)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    write_csv(found, folder / "methods.csv")
    print(f"{'goal':>6} {'loss':>6}  {'method':<21} {'critical batch size':>20}  95% interval")
    for row in found.to_dict("records"):
        value = f"{row['value']:,.0f}" if math.isfinite(row["value"]) else f"above {row['tried']:,.0f}"
        high = f"{row['high']:,.0f}" if math.isfinite(row["high"]) else "∞"
        interval = f"{row['low']:,.0f} to {high}" if math.isfinite(row["low"]) else "–"
        print(f"{row['goal']:>6g} {row['loss']:>6.3g}  {row['method']:<21} {value:>20}  {interval}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
