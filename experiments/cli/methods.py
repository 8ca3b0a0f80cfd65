"""One table of the critical batch size by every method: `python -m experiments.cli.methods FOLDER`."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.b_crit_methods import methods
from experiments.errors import UserError
from experiments.tables.reading import write_csv


def main(arguments: Sequence[str]) -> int:
    """Print the table and write `methods.csv` beside the others."""
    try:
        if len(arguments) != 1:
            raise UserError(
                "one folder of results wanted: python -m experiments.cli.methods results/reference/lm-small"
            )
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
