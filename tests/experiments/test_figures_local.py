from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.figures.local import draw_line_searches, figure15, figure17
from experiments.figures.style import drawn, save


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
    points, curve = axes.lines[0], axes.lines[1]
    at = np.interp(np.log(points.get_xdata()), np.log(curve.get_xdata()), curve.get_ydata())
    np.testing.assert_allclose(points.get_ydata(), at, rtol=0.01)


def test_without_tables_the_panels_say_how_to_get_them(tmp_path):
    axes = Figure().subplots()
    draw_line_searches(axes, tmp_path)
    for panel in (figure15(tmp_path).axes[0], figure17(tmp_path).axes[0], axes):
        assert "python -m experiments." in panel.texts[0].get_text()


def test_the_same_tables_give_the_same_bytes(results):
    first, second = (save(drawn(lambda: figure15(results)), results / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
