"""B_crit against the loss over a sweep's goals, beside Kaplan 2020: `python -m experiments.cli.scaling
results/reference/lm-small`.

For tasks whose metric is a perplexity: the loss of Kaplan's law is its logarithm, in nats per token. Goals whose B_crit
is not determined are left out and counted.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.errors import UserError
from experiments.tables.reading import read_tables
from noisescale.pareto.fit import Estimate
from noisescale.pareto.scaling_law import KAPLAN_ALPHA, KAPLAN_B_STAR, ScalingFit, fit_scaling


def scaling(folder: Path) -> tuple[ScalingFit, int]:
    """The fit over the goals of `fits.csv` in `folder`, and the number of goals left out."""
    metric = read_tables(folder).describe("metric")
    if not metric.endswith("perplexity"):
        raise UserError(
            f"{folder}: goals are values of {metric}; the law is about a loss in nats, so it needs a perplexity"
        )
    fits = pd.read_csv(folder / "fits.csv")
    usable = fits["b_crit_low"].gt(0) & np.isfinite(fits["b_crit_high"]) & fits["b_crit_status"].eq("determined")
    kept = fits[usable]
    try:
        fit = fit_scaling(np.log(kept["goal"]), kept["b_crit"], kept["b_crit_low"], kept["b_crit_high"])
    except ValueError as error:
        raise UserError(
            f"{folder}/fits.csv: {len(kept)} of {len(fits)} goals have a determined B_crit: {error}"
        ) from None
    return fit, int((~usable).sum())


def table(fit: ScalingFit) -> pd.DataFrame:
    """A row a constant: ours with its interval, and Kaplan's."""
    ours = {"b_star": fit.b_star, "alpha": fit.alpha, "exponent": fit.exponent}
    kaplan = {"b_star": KAPLAN_B_STAR, "alpha": KAPLAN_ALPHA, "exponent": 1 / KAPLAN_ALPHA}
    return pd.DataFrame(
        [{"constant": name, **_columns(value), "kaplan_2020": kaplan[name]} for name, value in ours.items()]
    )


def _columns(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
