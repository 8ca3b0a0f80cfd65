"""The quadratic sweep against what is known exactly about it (`tasks.quadratic_theory`)."""

from dataclasses import dataclass, replace

import numpy as np

from experiments.fit import GoalFit, hessian_curves, simple_curves
from experiments.pooled import Curve, at_steps, averaged
from experiments.summary import Sweep
from experiments.tasks.quadratic import QuadraticConfig
from experiments.tasks.quadratic_theory import NoisyQuadratic
from noisescale.pareto import Estimate, fit_pareto

POINTS_A_ROW = 5


@dataclass(frozen=True)
class Truth:
    """One goal. `exact_…` is B_crit of the exact S(B) at the sweep's batch sizes, and what the sweep's own estimators
    give when every measured pair is replaced by its exact expectation at the same steps of the same runs."""

    fit: GoalFit
    exact_b_crit: float
    exact_b_simple: float
    exact_b_simple_avg: float
    exact_b_noise: float
    exact_b_noise_avg: float


def truths(sweep: Sweep) -> list[Truth]:
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
        found.append(
            Truth(
                fit=fit,
                exact_b_crit=exact.b_crit.value,
                exact_b_simple=at_steps(simple, steps).value,
                exact_b_simple_avg=averaged(simple, steps).value,
                exact_b_noise=at_steps(noise, steps).value,
                exact_b_noise_avg=averaged(noise, steps).value,
            )
        )
    return found


def _exact_simple(run: Curve, problem: NoisyQuadratic, lr: float) -> Curve:
    """The run's rows with the exact tr Σ and E|G|², averaged over the steps that each row speaks for."""
    last = np.maximum(run.until - 1, run.since)
    steps = run.since[:, None] + (last - run.since)[:, None] * np.linspace(0, 1, POINTS_A_ROW)
    square = (problem.second_moments(run.batch_size, lr, steps) @ problem.curvature**2).mean(axis=1)
    return replace(run, trace=np.full(len(square), problem.cov.sum()), square=square)


def _exact_noise(run: Curve, problem: NoisyQuadratic, lr: float) -> Curve:
    """The run's rows with the exact tr HΣ and E[GᵀHG] at their steps."""
    square = problem.second_moments(run.batch_size, lr, run.at) @ problem.curvature**3
    return replace(run, trace=np.full(len(square), problem.curvature @ problem.cov), square=square)


def off(measured: float, exact: float) -> float:
    """Relative difference, measured/exact − 1."""
    return measured / exact - 1


def within(estimate: Estimate, exact: float) -> bool:
    """Whether the interval holds the exact value."""
    return estimate.low <= exact <= estimate.high
