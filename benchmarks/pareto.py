"""How often the intervals of B_crit cover the truth in simulated sweeps, and what a fit costs.

    python benchmarks/pareto.py [sweeps, 500 by default]

A sweep has a run for every (batch size, learning rate, seed), with noise of its own in ln S, and maybe an error shared
by all runs of a batch size. The learning rate with the best mean is kept for each batch size, as in a real sweep. A
budget may cut off the small batch sizes. The columns: share of sweeps in which the interval covers the planted B_crit,
for the fit, for the bootstrap over seeds and for the wider of the two; median ratio of the interval's ends;
milliseconds a call.
"""

import math
import sys
import time
from dataclasses import dataclass

import numpy as np

from noisescale.pareto.bootstrap import bootstrap_seeds
from noisescale.pareto.fit import Estimate, fit_pareto

S_MIN = 100.0
REPLICATES = 400


@dataclass(frozen=True)
class Scenario:
    batch_sizes: int
    seeds: int
    noise: float
    shared: float = 0.0
    cut_off: float = 0.0
    lrs: int = 4


SCENARIOS = (
    Scenario(6, 2, 0.05),
    Scenario(6, 3, 0.2),
    Scenario(8, 3, 0.1),
    Scenario(12, 2, 0.2),
    Scenario(8, 3, 0.1, shared=0.1),
    Scenario(8, 3, 0.1, cut_off=0.25),
    Scenario(12, 3, 0.2, cut_off=0.3),
)


def main(sweeps: int) -> None:
    header = (
        "batch sizes  seeds  noise  shared  cut off │ fit  bootstrap  wider │ ends: fit  bootstrap │ ms: fit  bootstrap"
    )
    print(header)
    for scenario in SCENARIOS:
        rng = np.random.default_rng(0)
        results = np.array([one_sweep(scenario, rng) for _ in range(sweeps)])
        covered = results[:, :3].mean(0)
        ends = np.exp(np.median(results[:, 3:5], 0))
        ms = 1e3 * results[:, 5:].mean(0)
        s = scenario
        print(
            f"{s.batch_sizes:11}  {s.seeds:5}  {s.noise:5}  {s.shared:6}  {s.cut_off:7} │ "
            f"{covered[0]:.1%}  {covered[1]:.1%}  {covered[2]:.1%} │ "
            f"{ends[0]:9.2f}  {ends[1]:9.2f} │ {ms[0]:7.1f}  {ms[1]:9.1f}",
            flush=True,
        )


def one_sweep(s: Scenario, rng: np.random.Generator) -> list[float]:
    batch = 4 * 2.0 ** np.arange(s.batch_sizes)
    b_crit = 4 * 2 ** ((s.batch_sizes - 1) * rng.uniform(0.35, 0.65))
    truth = np.log(S_MIN * (1 + b_crit / batch))[:, None, None]
    off = (np.arange(s.lrs) - (s.lrs - 1) / 2 + rng.uniform(-0.5, 0.5))[None, :, None]
    shape = (s.batch_sizes, s.lrs, s.seeds)
    log_steps = (
        truth
        + 0.05 * off**2
        + s.noise * rng.standard_normal(shape)
        + s.shared * rng.standard_normal((s.batch_sizes, 1, 1))
    )
    budget = 0.02 + np.quantile(truth, 1 - s.cut_off) if s.cut_off else math.inf
    reached = log_steps < budget
    log_steps = np.minimum(log_steps, budget)

    missed = (~reached).mean(-1)
    best = np.where(missed == missed.min(-1, keepdims=True), log_steps.mean(-1), np.inf).argmin(-1)
    rows = np.arange(s.batch_sizes)
    start = time.perf_counter()
    fit = fit_pareto(
        np.repeat(batch, s.seeds), np.exp(log_steps[rows, best]).ravel(), reached=reached[rows, best].ravel()
    ).b_crit
    fitted = time.perf_counter()
    sizes, lrs = (np.broadcast_to(x, shape).ravel() for x in (batch[:, None, None], np.arange(s.lrs)[None, :, None]))
    boot = bootstrap_seeds(
        sizes, np.exp(log_steps).ravel(), candidate=lrs, reached=reached.ravel(), replicates=REPLICATES
    )
    booted = time.perf_counter()
    wider = max(fit, boot, key=width)
    covers = [estimate.low <= b_crit <= estimate.high for estimate in (fit, boot, wider)]
    return [*covers, width(fit), width(boot), fitted - start, booted - fitted]


def width(estimate: Estimate) -> float:
    return math.log(estimate.high / estimate.low) if estimate.low > 0 else math.inf


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
