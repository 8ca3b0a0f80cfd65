"""What was measured at single runs of the image tasks: B_noise, temperature, adaptive batch sizes, the gradient's
autocorrelation, and what the autoencoders' open choices change."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from experiments.analysis.verdict import ratio
from experiments.report.markdown import table
from noisescale.formatting import number, with_interval
from noisescale.pareto.fit import Estimate

LOCAL = {"line search": "B_noise, line searches", "Hessian": "B_noise, Hessian", "b_simple": "B_simple"}
CUT_FACTOR = 16
CUT = {"lr": "the learning rate", "batch": "the batch size", "both": "both"}


def local_noise(results: Path) -> list[str]:
    """B_noise by line searches and by Hessian-vector products, and B_simple, at the same weights of one run."""
    blocks: list[str] = []
    for path in sorted(results.glob("*/local_noise.csv")):
        found = pd.read_csv(path)
        names = list(dict.fromkeys(found["quantity"]))
        rows = []
        for goal, mine in found.groupby("goal", sort=False):
            by_name = {row.quantity: Estimate(row.value, row.low, row.high) for row in mine.itertuples()}
            rows.append([f"{goal:g}", *(with_interval(by_name[name]) for name in names)])
        blocks += [
            f"## {path.parent.name}: B_noise two ways",
            "At the same weights of one run, in the unit of B: the paper's line searches, Hessian-vector products, "
            "and B_simple. The searches look at the loss of the fixed evaluation set, without dropout; the other two "
            "at the loss that is trained on. One run at one learning rate isn't the tuned runs of the sweep, so these "
            "aren't its numbers.",
            table(["goal", *(LOCAL.get(name, name) for name in names)], rows),
            _two_ways(found),
        ]
    return blocks


def _two_ways(found: pd.DataFrame) -> str:
    """Whether the two B_noise agree with each other and with B_simple, by the intervals of their ratios."""
    values = {
        (row.goal, row.quantity): Estimate(row.value, row.low, row.high)
        for row in found.itertuples()
        if row.determined and row.value > 0
    }
    said = []
    for first, second in (("line search", "Hessian"), ("line search", "b_simple"), ("Hessian", "b_simple")):
        factors = [
            ratio(values[goal, first], values[goal, second])
            for goal in found["goal"].unique()
            if (goal, first) in values and (goal, second) in values
        ]
        if factors:
            same = sum(factor.low <= 1 <= factor.high for factor in factors)
            said.append(
                f"{LOCAL[first]} over {LOCAL[second]} is {', '.join(map(with_interval, factors))} (1 lies within at "
                f"{same} of {len(factors)} goals)"
            )
    return f"{'; '.join(said)}." if said else "No two of them are determined at one goal."


def temperature(results: Path) -> list[str]:
    """What a 16-fold cut of the temperature did to B_simple, by the way it was made (Fig. 15; Gray 2024)."""
    blocks: list[str] = []
    for path in sorted(results.glob("*/temperature.csv")):
        found = pd.read_csv(path)
        rows, moved = [], {"lr": [], "batch": [], "both": []}
        for goal, mine in found.groupby("goal", sort=False):
            by_cut = {row.cut: Estimate(row.b_simple, row.b_simple_low, row.b_simple_high) for row in mine.itertuples()}
            factors = {cut: ratio(by_cut[cut], by_cut["none"]) for cut in moved}
            for cut, factor in factors.items():
                moved[cut].append(factor.low > 1 or factor.high < 1)
            cells = (f"{with_interval(by_cut[cut])}, {with_interval(factors[cut])} times" for cut in moved)
            rows.append([f"{goal:g}", with_interval(by_cut["none"]), *cells])
        said = "; ".join(f"through {CUT[cut]} at {sum(clear)} of {len(clear)} goals" for cut, clear in moved.items())
        blocks += [
            f"## {path.parent.name}: does B_simple follow the temperature?",
            "From checkpoints of one run, with the temperature ε/B cut 16-fold; the paper's Fig. 15 says that "
            "either way moves B_simple, Gray 2024 saw only the learning rate move it.",
            table(["from goal", "uncut", *(f"through {CUT[cut]}" for cut in moved)], rows),
            f"B_simple clearly moved (the interval of the factor excludes 1): {said}. {_ended(found)}",
        ]
    return blocks


def _ended(found: pd.DataFrame) -> str:
    """Where the branches ended: after a cut through the learning rate a run is also less far on, which moves B_simple
    too."""
    cuts = found[found["cut"] != "none"].merge(found[found["cut"] == "none"], on="goal", suffixes=("", "_uncut"))
    factors = [
        ratio(
            Estimate(row.b_simple, row.b_simple_low, row.b_simple_high),
            Estimate(row.b_simple_uncut, row.b_simple_low_uncut, row.b_simple_high_uncut),
        )
        for row in cuts.itertuples()
    ]
    whole = sum(factor.low <= CUT_FACTOR <= factor.high for factor in factors)
    ends = found.groupby("cut")["metric"].agg(["min", "max"])
    spans = {cut: f"{row['min']:.2g} to {row['max']:.2g}" for cut, row in ends.iterrows()}
    cut = ", ".join(f"{spans[name]} ({CUT[name]})" for name in CUT if name in spans)
    return (
        f"A factor of {CUT_FACTOR}, as B_simple ∝ 1/T would have it, lies within the interval in {whole} of "
        f"{len(factors)} cases. The branches don't end at equal progress: the metric is {spans['none']} uncut and "
        f"{cut} cut, and B_simple changes along a run too, so not all of the change, or of what is missing in it, need "
        "be the temperature's."
    )


def adaptive(results: Path) -> list[str]:
    """Steps and examples of runs with B = √(r · B_simple), over the fixed-batch front (Fig. 16)."""
    blocks: list[str] = []
    for path in sorted(results.glob("*/adaptive.csv")):
        found = pd.read_csv(path)
        runs, fits = pd.read_csv(path.with_name("adaptive_runs.csv")), pd.read_csv(path.with_name("fits.csv"))
        rows = [
            [
                f"{row.goal:g}",
                f"{row.r:g}",
                f"{row.steps:,.0f}" if row.reached else "not reached",
                f"{row.examples:,.0f}",
                number(row.over_fixed) if np.isfinite(row.over_fixed) else "–",
                number(row.gamma),
            ]
            for row in found.itertuples()
        ]
        known = found.loc[found["reached"] & np.isfinite(found["over_fixed"]), "over_fixed"]
        saved = int((known < 1).sum())
        blocks += [
            f"## {path.parent.name}: a batch size that follows the noise scale",
            "B = √(r B_simple) with the run's own B_simple, for prices r of a step in examples, beside what the fitted "
            "front of fixed batch sizes takes for the same steps. Theory expects 1 where γ = 1.",
            table(["goal", "r", "steps S", "examples E", "E / fixed batch's E", "γ"], rows),
            f"Fewer examples than a fixed batch size for the same steps in {saved} of {len(known)} cases. "
            f"{_over_fixed(found, runs, fits)} The best of {runs['lr'].nunique()} learning rates is chosen for each r "
            f"and goal, by a mean over {found['seeds'].max()} seeds.",
        ]
    return blocks


def _over_fixed(found: pd.DataFrame, runs: pd.DataFrame, fits: pd.DataFrame) -> str:
    """The geometric mean of examples over the fixed front's, with the scatter between the runs of each r and seed."""
    chosen = runs.merge(found[["goal", "r", "lr"]], on=["goal", "r", "lr"]).merge(fits[["goal", "s_min", "e_min"]])
    chosen = chosen[chosen["reached"] & (chosen["steps"] > chosen["s_min"])]
    fixed = chosen["e_min"] * chosen["steps"] / (chosen["steps"] - chosen["s_min"])
    logs = np.log(chosen["examples"] / fixed).groupby([chosen["r"], chosen["seed"]]).mean()
    if len(logs) < 2:
        return ""
    middle, reach = logs.mean(), logs.sem() * stdtrit(len(logs) - 1, 0.975)
    found_ratio = Estimate(*(float(np.exp(middle + sign * reach)) for sign in (0, -1, 1)))
    answer = "fewer" if found_ratio.high < 1 else "more" if found_ratio.low > 1 else "can't tell"
    return (
        f"In the geometric mean {with_interval(found_ratio)} times as many ({answer}), the interval from the scatter "
        "between prices and seeds; the front's own errors come on top."
    )


def autocorrelation(results: Path) -> list[str]:
    """How long the true gradient keeps its direction (Fig. 18)."""
    blocks: list[str] = []
    for path in sorted(results.glob("*/autocorrelation.csv")):
        found = pd.read_csv(path)
        lags = sorted(found["lag"].unique())
        rows = []
        for goal, mine in found.groupby("goal", sort=False):
            by_lag = {
                row.lag: Estimate(row.correlation, row.correlation_low, row.correlation_high)
                for row in mine.itertuples()
            }
            rows.append([f"{goal:g}", *(with_interval(by_lag[lag]) for lag in lags)])
        first = found.iloc[0]
        memory = (
            f", which averages over 1/(1 − β₁) = {1 / (1 - first['beta1']):.3g} steps" if first["beta1"] > 0 else ""
        )
        blocks += [
            f"## {path.parent.name}: the gradient's autocorrelation",
            f"⟨G(t)·G(t+τ)⟩/⟨|G|²⟩ of the true gradient along a run with {first['optimizer']}{memory}, from where it "
            "passes a goal; τ in steps.",
            table(["from goal", *(f"τ = {lag}" for lag in lags)], rows),
            _memory(found),
        ]
    return blocks


def _memory(found: pd.DataFrame) -> str:
    """How far apart the gradient still points the same way."""
    said = []
    for goal, mine in found.groupby("goal", sort=False):
        clear = mine[mine["correlation_low"] > 0]
        until = f"up to τ = {clear['lag'].max()}" if len(clear) else "at no lag measured"
        said.append(f"{until} from goal {goal:g}")
    return f"It is clearly above 0 {', '.join(said)}."


def variations(results: Path) -> list[str]:
    """B_crit and B_simple with one of the open choices changed."""
    blocks: list[str] = []
    for path in sorted(results.glob("*/variations.csv")):
        rows = [
            [
                row.variation,
                f"{row.goal:g}",
                with_interval(Estimate(row.b_crit, row.b_crit_low, row.b_crit_high))
                if row.b_crit_status == "determined"
                else "not determined",
                with_interval(Estimate(row.b_simple_avg, row.b_simple_avg_low, row.b_simple_avg_high)),
            ]
            for row in pd.read_csv(path).itertuples()
        ]
        blocks += [
            f"## {path.parent.name}: what the open choices change",
            "The paper doesn't give latent size, loss scaling or optimizer. A smaller sweep, as chosen and with one of "
            "them changed; goals are of the loss as it is then scaled.",
            table(["variation", "goal", "B_crit (images)", "B_simple averaged (images)"], rows),
            _moves(pd.read_csv(path)),
        ]
    return blocks


def _moves(found: pd.DataFrame) -> str:
    """Over which range each quantity moves from choice to choice, where it is determined."""
    known = found[found["b_crit_status"] == "determined"]
    spans = []
    for label, name in (("B_crit", "b_crit"), ("B_simple averaged", "b_simple_avg")):
        values = known[name][known[name] > 0]
        if len(values):
            spans.append(f"{label} from {number(values.min(), 2)} to {number(values.max(), 2)}")
    return f"Over all choices and goals, {' and '.join(spans)}." if spans else "B_crit is determined at none of them."
