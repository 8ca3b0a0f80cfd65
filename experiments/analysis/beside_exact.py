"""The quadratic sweep against what is known exactly about it (`tasks.quadratic_theory`)."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from experiments.analysis.goal_fit import hessian_curves, simple_curves
from experiments.analysis.noise_at_goal import Curve, at_steps
from experiments.analysis.sweep_summary import SweepResult
from experiments.tasks.quadratic import QuadraticConfig
from experiments.tasks.quadratic_theory import NoisyQuadratic
from noisescale.pareto.fit import Estimate, fit_pareto

POINTS_A_ROW = 5


@dataclass(frozen=True)
class Truth:
    """One goal: what the sweep measured of each quantity, and what is exactly so.

    B_crit is that of the exact S(B) at the sweep's batch sizes. Noise scales at the goal are what the sweep's own
    estimators give when every measured pair is replaced by its exact expectation at the same steps of the same runs;
    averaged ones are the exact integrals along the same runs.
    """

    goal: float
    pairs: dict[str, tuple[Estimate, float]]

    def off(self, name: str) -> float:
        """Relative difference, measured/exact − 1."""
        measured, exact = self.pairs[name]
        return measured.value / exact - 1


def truths(sweep: SweepResult) -> list[Truth]:
    """For every goal that is exactly solvable at every batch size of its fit."""
    config = QuadraticConfig(**sweep.config()["task"])
    problem = config.theory()
    found = []
    for fit in sweep.fits:
        arrived = sweep.arrived(fit.goal)
        sizes = sorted(arrived["batch_size"].unique())
        if len(sizes) < 3:
            continue
        exact = fit_pareto(sizes, [problem.exact_steps(size, fit.goal) for size in sizes])
        steps = arrived["steps"].to_list()
        lrs = arrived["lr"].to_list()
        problems = [problem] * len(lrs)
        simple = list(map(_exact_simple, simple_curves(sweep.tables, arrived), problems, lrs))
        noise = list(map(_exact_noise, hessian_curves(sweep.tables, arrived), problems, lrs))
        pairs = {
            "B_crit": (fit.b_crit, exact.b_crit.value),
            "B_simple at the goal": (fit.b_simple, at_steps(simple, steps).value),
            "B_simple averaged": (fit.b_simple_avg, _average(problem, arrived, 2)),
            "B_noise at the goal": (fit.b_noise, at_steps(noise, steps).value),
            "B_noise averaged": (fit.b_noise_avg, _average(problem, arrived, 3)),
        }
        found.append(Truth(fit.goal, {name: pair for name, pair in pairs.items() if pair[0].value == pair[0].value}))
    return found


def _exact_simple(run: Curve, problem: NoisyQuadratic, lr: float) -> Curve:
    """The run's rows with the exact tr Σ and E|G|², averaged over the steps since the row before."""
    before = np.minimum(2 * run.middle - run.at + 1, run.at)
    last = np.maximum(run.at - 1, before)
    steps = before[:, None] + (last - before)[:, None] * np.linspace(0, 1, POINTS_A_ROW)
    square = (problem.second_moments(run.batch_size, lr, steps) @ problem.curvature**2).mean(axis=1)
    return replace(run, trace=np.full(len(square), problem.cov.sum()), square=square)


def _exact_noise(run: Curve, problem: NoisyQuadratic, lr: float) -> Curve:
    """The run's rows with the exact tr HΣ and E[GᵀHG] at their steps."""
    square = problem.second_moments(run.batch_size, lr, run.at) @ problem.curvature**3
    return replace(run, trace=np.full(len(square), problem.curvature @ problem.cov), square=square)


def _average(problem: NoisyQuadratic, arrived: pd.DataFrame, power: int) -> float:
    """∫𝓑 ds / ∫ds over the runs, of B_simple (`power` 2: g = Σ h² m) or B_noise (3: g = Σ h³ m)."""
    trace = float(problem.curvature ** (power - 2) @ problem.cov)
    top = bottom = 0.0
    for run in arrived.itertuples():
        edges = np.append(np.arange(np.ceil(run.steps)), run.steps)
        square = problem.second_moments(run.batch_size, run.lr, edges[:-1]) @ problem.curvature**power
        mean_square = square + trace / run.batch_size
        top += float(np.diff(edges) @ (trace / mean_square))
        bottom += float(np.diff(edges) @ (square / mean_square))
    return top / bottom
