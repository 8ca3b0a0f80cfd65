from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from synthetic_tables import plant
from synthetic_tables import save as save_tables

from experiments.analysis.sweep_fit import analyse
from experiments.figures.fig05_15_17_local_noise import draw_line_searches, figure15, figure17
from experiments.figures.fig08_16_18_19 import figure16, figure18
from experiments.figures.style import drawn, save
from experiments.report import images


@pytest.fixture
def results(tmp_path) -> Path:
    """Tables in which B_simple goes as 1/T, and B_noise is 100 and 400."""
    folder = tmp_path / "svhn-small"
    folder.mkdir()
    cuts = [
        {"goal": goal, "cut": cut, "b_simple": b, "b_simple_low": b / 1.2, "b_simple_high": b * 1.3}
        for goal, base in ((0.3, 200.0), (0.1, 900.0))
        for cut, b in (("none", base), ("lr", 16 * base), ("batch", 15 * base), ("both", np.nan))
    ]
    pd.DataFrame(cuts).to_csv(folder / "temperature.csv", index=False)
    sizes = (32, 128, 512, 2048)
    searches = [
        {"goal": goal, "batch_size": b, "step": 0.2 / (1 + noise / b), "lr": 0.1, "decrease": 0.01 / (1 + noise / b)}
        for goal, noise in ((0.3, 100), (0.1, 400))
        for b in sizes
        for _ in range(2)
    ]
    pd.DataFrame(searches).to_csv(folder / "line_searches.csv", index=False)
    fits = [{"goal": goal, "quantity": "line search", "value": value} for goal, value in ((0.3, 100.0), (0.1, 400.0))]
    pd.DataFrame(fits).to_csv(folder / "local_noise.csv", index=False)
    return tmp_path


def test_figure_17_shows_best_step_over_step_taken(results):
    axes = drawn(lambda: figure17(results)).axes[0]
    first = axes.containers[0].lines[0]
    np.testing.assert_allclose(first.get_ydata(), [2 / (1 + 100 / b) for b in (32, 128, 512, 2048)])


def test_figure_15_shows_every_measured_cut_and_the_factor_expected(results):
    axes = drawn(lambda: figure15(results)).axes[0]
    assert [len(c.lines[0].get_ydata()) for c in axes.containers] == [3, 3]
    dotted = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert dotted == [16 * 200.0, 16 * 900.0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["as before", "ε / 16", "16 B", "ε / 4, 4 B"]


def test_the_fitted_curve_goes_through_the_decreases(results):
    axes = Figure().subplots()
    draw_line_searches(axes, results)
    points, curve = axes.lines[0], next(line for line in axes.lines if len(line.get_xdata()) == 60)
    sizes, decreases = (values.astype(float) for values in points.get_data())
    at = np.interp(np.log(sizes), np.log(curve.get_xdata()), curve.get_ydata())
    np.testing.assert_allclose(decreases, at, rtol=0.01)


@pytest.fixture
def adapted(tmp_path) -> Path:
    """A fixed-batch sweep, and beside it an adaptive one that takes half the examples for twice S_min."""
    tables = plant()
    folder = save_tables(tables, tmp_path / "svhn-small")
    tables.runs.assign(task="svhn").to_parquet(folder / "runs.parquet")
    fits = analyse(folder, [0.5, 0.2])
    rows = [
        {"goal": f.goal, "r": 16.0, "reached": f.goal == 0.5, "gamma": 0.5, "lr": 0.1, "seeds": 2}
        | {"steps": 2 * f.s_min.value, "examples": f.e_min.value, "fixed_examples": 2 * f.e_min.value}
        | {"over_fixed": 0.5}
        for f in fits
    ]
    pd.DataFrame(rows).to_csv(folder / "adaptive.csv", index=False)
    runs = [row | {"lr": lr, "seed": seed} for row in rows for lr in (0.05, 0.1) for seed in range(3)]
    pd.DataFrame(runs).to_csv(folder / "adaptive_runs.csv", index=False)
    lags = [
        {"goal": goal, "optimizer": "adam", "beta1": 0.9, "batch_size": 64, "lr": 0.001, "lag": lag, "determined": True}
        | {"correlation": 0.9**lag, "correlation_low": 0.8**lag, "correlation_high": 0.95**lag}
        for goal in (0.5, 0.1)
        for lag in (1, 4, 16)
    ]
    (tmp_path / "svhn_adam-small").mkdir()
    pd.DataFrame(lags).to_csv(tmp_path / "svhn_adam-small" / "autocorrelation.csv", index=False)
    return tmp_path


def test_figure_16_puts_what_was_reached_over_the_front_and_in_its_units(adapted):
    left, right = drawn(lambda: figure16(adapted)).axes[:2]
    stars = [line for line in left.lines if line.get_marker() == "*"]
    assert [len(line.get_xdata()) for line in stars] == [1, 0]
    units = next(line for line in right.lines if line.get_marker() == "*")
    assert (units.get_xdata()[0], units.get_ydata()[0]) == (pytest.approx(2), pytest.approx(1))
    said = "\n".join(images.adaptive(adapted))
    assert "in 1 of 1 cases. In the geometric mean 0.5000 times as many (fewer)" in said


def test_figure_18_shows_every_lag_and_what_adam_averages_over(adapted):
    axes = drawn(lambda: figure18(adapted)).axes[0]
    np.testing.assert_allclose(axes.containers[0].lines[0].get_ydata(), [0.9, 0.9**4, 0.9**16])
    assert any("= 10, what Adam averages over" in str(line.get_label()) for line in axes.lines)
    assert "β₁) = 10 steps" in "\n".join(images.autocorrelation(adapted))


def test_without_tables_the_panels_say_how_to_get_them(tmp_path):
    axes = Figure().subplots()
    draw_line_searches(axes, tmp_path)
    panels = [draw(tmp_path).axes[0] for draw in (figure15, figure16, figure17, figure18)]
    for panel in (*panels, axes):
        assert "python -m experiments.cli." in panel.texts[0].get_text()


def test_the_same_tables_give_the_same_bytes(results):
    first, second = (save(drawn(lambda: figure15(results)), results / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
