"""B_crit against the loss over a sweep's goals: `python -m experiments.cli.scaling results/reference/lm-small`."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.scaling_law import scaling, table
from experiments.errors import UserError
from experiments.tables.reading import write_csv


def main(arguments: Sequence[str]) -> int:
    """Print the fit and write `scaling.csv` beside the other tables."""
    try:
        if len(arguments) != 1:
            raise UserError(
                "one folder of results wanted: python -m experiments.cli.scaling results/reference/lm-small"
            )
        folder = Path(arguments[0])
        fit, left_out = scaling(folder)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    found = table(fit)
    write_csv(found, folder / "scaling.csv")
    print(f"B_crit = B_*/L^(1/α) over {fit.n} goals ({left_out} not determined), rms {fit.rms:.2f} in ln B_crit")
    for row in found.itertuples():
        high = f"{row.high:.3g}" if math.isfinite(float(str(row.high))) else "∞"
        print(f"{row.constant:>9}  {row.value:.3g} [{row.low:.3g}, {high}]   Kaplan 2020: {row.kaplan_2020:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
