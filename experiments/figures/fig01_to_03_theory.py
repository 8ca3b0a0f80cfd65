"""The paper's sketches, Figs 1–3 and the prediction of Fig. 16, drawn from an exactly known noisy quadratic."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.fig06_07_09_to_14_tasks import sweep_of
from experiments.figures.pareto_fronts import draw_fronts
from experiments.figures.style import COLOURS, GREY, PAGE, log_axis, mark, shades
from experiments.tasks.quadratic import QuadraticConfig
from experiments.tasks.quadratic_theory import NoisyQuadratic
from noisescale.pareto.fit import fit_pareto

B = r"$\mathcal{B}$"
SKETCH_GOAL = 0.1
SKETCH_SIZES = tuple(2**i for i in range(1, 15, 2))
MARKED = (2, 32, 512, 8192)


def figure1(results: Path) -> Figure:
    """Left, the trade-off of steps against examples on the quadratic; right, Breakout's cost against time."""
    figure = Figure(figsize=(PAGE, 2.9))
    left, right = figure.subplots(1, 2)
    problem = QuadraticConfig(name="quadratic").theory()
    steps = np.array([problem.exact_steps(size, SKETCH_GOAL) for size in SKETCH_SIZES])
    examples = steps * SKETCH_SIZES
    fit = fit_pareto(SKETCH_SIZES, steps)
    sizes = np.geomspace(SKETCH_SIZES[0] / 2, SKETCH_SIZES[-1] * 2, 200)
    left.plot(fit.steps(sizes), fit.examples(sizes), color=COLOURS[0], label="(S/S_min − 1)(E/E_min − 1) = 1")
    left.plot(steps, examples, "o", color=COLOURS[1], label="noisy quadratic, exact, best constant ε")
    for size, s, e in zip(SKETCH_SIZES, steps, examples, strict=True):
        if size in MARKED:
            left.annotate(f"B = {size}", (s, e), xytext=(6, 4), textcoords="offset points", fontsize=7)
    left.axvline(fit.s_min.value, color=GREY, linewidth=0.7, linestyle=":")
    left.axhline(fit.e_min.value, color=GREY, linewidth=0.7, linestyle=":")
    left.plot(
        2 * fit.s_min.value,
        2 * fit.e_min.value,
        "*",
        color=COLOURS[2],
        markersize=9,
        label="B = B_crit: twice the least of both",
    )
    log_axis(left.xaxis, steps.min(), steps.max())
    log_axis(left.yaxis, examples.min(), examples.max())
    left.text(fit.s_min.value, fit.e_min.value * 1.6, "S_min", fontsize=7, color=GREY, ha="right", rotation=90)
    left.text(fit.s_min.value * 3, fit.e_min.value, "E_min", fontsize=7, color=GREY, va="top")
    left.set_xlim(fit.s_min.value / 1.5, steps.max() * 3)
    left.set_ylim(fit.e_min.value / 1.7, examples.max() * 30)
    left.set_xlabel("optimizer steps S (time)")
    left.set_ylabel("examples E (cost)")
    left.set_title(f"Noisy quadratic, loss 1 to {SKETCH_GOAL:g}")
    left.legend(loc="upper right")
    ours = sweep_of(results, "breakout")
    draw_fronts(
        right, ours, results, "Breakout", "Breakout, mean score" + ("" if ours else ": the paper's points alone")
    )
    return figure


def figure2(results: Path) -> Figure:
    """Two runs of momentum SGD on one noisy quadratic: above and below the noise scale."""
    del results
    figure = Figure(figsize=(PAGE, 2.6))
    curvature, cov, start = np.array([1.0, 0.15]), np.array([0.6, 0.6]), np.array([-1.5, 2.4])
    scale = float(NoisyQuadratic(curvature, cov, start).b_noise(start**2))
    large = 0.5
    runs = ((16, large, 25), (1, large / 2, 50))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    grid = np.meshgrid(np.linspace(-2.1, 1.9, 200), np.linspace(-1.6, 4.3, 200))
    loss = 0.5 * (curvature[0] * grid[0] ** 2 + curvature[1] * grid[1] ** 2)
    for panel, (share, lr, steps), colour in zip(panels, runs, COLOURS, strict=False):
        path = _momentum(curvature, cov, start, share * scale, lr, steps)
        panel.contour(*grid, np.sqrt(loss), levels=10, colors="#d0d0d0", linewidths=0.6)
        panel.plot(*path.T, color=colour, marker="o", markersize=2.2, linewidth=0.8)
        panel.plot(*start, marker="s", color="black", markersize=5)
        panel.plot(0, 0, marker="*", color="black", markersize=8)
        panel.set_title(f"B = {share:g} {B}, learning rate {lr:g}: {steps} steps")
        panel.set_xlabel("θ₁ (curvature 1)")
        panel.grid(False)
    panels[0].set_ylabel("θ₂ (curvature 0.15)")
    return figure


def _momentum(curvature, cov, start, size: float, lr: float, steps: int, momentum: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng(3)
    weights, velocity, path = start.copy(), np.zeros(2), [start.copy()]
    for _ in range(steps):
        gradient = curvature * weights + rng.standard_normal(2) * np.sqrt(cov / size)
        velocity = momentum * velocity + gradient
        weights = weights - lr * velocity
        path.append(weights.copy())
    return np.array(path)


def figure3(results: Path) -> Figure:
    """Left, the loss after one step against its size; right, the best step and its gain against B/𝓑, theory and
    measured."""
    del results
    figure = Figure(figsize=(PAGE, 2.7))
    left, right = figure.subplots(1, 2)
    problem = QuadraticConfig(name="quadratic").theory()
    square = float(((problem.curvature * problem.start) ** 2).sum())
    curved = float((problem.curvature**3 * problem.start**2).sum())
    scale = float(problem.b_noise(problem.start**2))
    best = square / curved
    step = np.linspace(0, 1.5 * best, 100)
    sizes = (scale / 4, scale, 4 * scale, np.inf)
    for size, name, colour in zip(sizes, (f"{B}/4", B, f"4{B}", "∞"), shades(4), strict=True):
        change = -step * square + 0.5 * step**2 * curved * (1 + scale / size)
        left.plot(step / best, change, color=colour)
        at = best / (1 + scale / size)
        left.plot(at / best, -at * square / 2, "o", color=colour)
        place = {"xytext": (0, 6), "textcoords": "offset points", "fontsize": 7, "color": colour, "ha": "center"}
        left.annotate(f"B = {name}", (at / best, -at * square / 2), **place)
    left.set_ylim(-0.55 * best * square, 0.3 * best * square)
    left.set_xlabel("learning rate ε/ε_max")
    left.set_ylabel("expected change of the loss")
    left.set_title("One step on the noisy quadratic; dots: the best")
    ratio = np.geomspace(1 / 64, 64, 100)
    right.plot(ratio, 1 / (1 + 1 / ratio), color=COLOURS[0], label=f"1/(1 + {B}/B): ε_opt/ε_max and ΔL/ΔL_max")
    at = 2.0 ** np.arange(-6, 7, 2)
    measured = np.array([_measured_step(problem, size * scale) for size in at])
    right.plot(at, measured[:, 0] / best, mark(0), color=COLOURS[1], label="ε_opt/ε_max, 4,000 sampled batches")
    right.plot(
        at,
        measured[:, 1] / (best * square / 2),
        mark(1),
        color=COLOURS[2],
        fillstyle="none",
        label="ΔL/ΔL_max, the same",
    )
    log_axis(right.xaxis, ratio.min(), ratio.max())
    log_axis(right.yaxis, 0.01, 1.0)
    right.set_xlabel(f"B/{B}")
    right.set_ylabel("share of the noiseless best")
    right.set_title(f"Best step against batch size ({B} = {scale:.3g})")
    right.legend(loc="lower right")
    return figure


def _measured_step(problem: NoisyQuadratic, size: float, batches: int = 4000) -> tuple[float, float]:
    """The step that lowers the mean true loss most, and by how much, over batches drawn at the start."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((batches, problem.start.size)) * np.sqrt(problem.cov / size)
    gradient = problem.curvature * problem.start
    batch = gradient + noise
    slope, bend = float((batch @ gradient).mean()), float((batch**2 @ problem.curvature).mean())
    return slope / bend, slope**2 / (2 * bend)
