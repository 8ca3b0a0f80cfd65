"""Figures from tables alone: they come out, the same each time, labelled, and say what is missing."""

import errno
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from synthetic_tables import Planted, plant, save

from experiments.analysis.sweep_fit import analyse
from experiments.analysis.sweep_summary import read_sweep, summarise
from experiments.errors import UserError
from experiments.figures import style
from experiments.figures.fig06_07_09_to_14_tasks import sweep_of
from experiments.figures.files import draw
from experiments.figures.one_sweep import b_simple_along, learning_rates, tuned_runs
from experiments.figures.pareto_fronts import spread
from experiments.figures.point_labels import Name, Names
from experiments.figures.registry import registry
from experiments.figures.style import GREY, MARKS, READABLE, drawn, log_axis, number, whiskers
from experiments.report.images import local_noise, temperature
from noisescale.pareto.fit import Estimate

PAPER = Path(__file__).parents[3] / "results" / "paper"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    shutil.copytree(PAPER, folder / "paper")
    tables = plant(Planted(seeds=2, norm_noise=1.0, scatter=0.05))
    tables.runs["task"] = "svhn"
    analyse(save(tables, folder / "svhn-small"), [0.5, 0.2, 0.1])
    return folder


def test_a_sweeps_figures_are_the_same_bytes_twice(results):
    files = draw(results, ["svhn-small"])
    assert [path.name for path in files] == [
        f"svhn-small-{kind}.{end}" for kind in ("curves", "pareto", "noise", "lr") for end in ("pdf", "png")
    ]
    first = [path.read_bytes() for path in files]
    assert [path.read_bytes() for path in draw(results, ["svhn-small"])] == first


def test_a_figure_that_is_cut_short_leaves_the_old_one(tmp_path, monkeypatch):
    paths = style.save(Figure(), tmp_path / "f")
    before = [path.read_bytes() for path in paths]

    def cut_short(self, to, **_):
        with open(to, "wb") if isinstance(to, Path) else to as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", cut_short)
    with pytest.raises(OSError, match="No space left"):
        style.save(Figure(), tmp_path / "f")
    assert [path.read_bytes() for path in paths] == before and len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_every_figure_is_drawn_and_labelled(results):
    figures = registry(results)
    assert {f"fig{i:02d}" for i in range(1, 20)} <= set(figures)
    for name, function in figures.items():
        figure = drawn(partial(function, results))
        for axes in figure.axes:
            if axes.axison and axes.has_data():
                shared = axes.get_shared_y_axes().get_siblings(axes)
                assert axes.get_xlabel(), name
                assert any(sibling.get_ylabel() for sibling in shared), name


def test_names_at_nearly_one_point_keep_clear_of_each_other_and_of_the_frame():
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.plot([0.2, 0.5], [0.2, 0.2], "o-")
    Names(axes, [Name(f"{i}.5", 0.5, 0.2 + 0.02 * i, "black") for i in range(4)])
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    frame = axes.get_window_extent()
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.y0 >= frame.y0 and box.y1 <= frame.y1 for box in boxes)
    dot = axes.transData.transform((0.5, 0.2))
    assert not any(box.contains(*dot) for box in boxes)


def test_figures_without_our_sweep_say_so(results):
    figure = drawn(partial(registry(results)["fig10"], results))
    said = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert "make sweep TASK=imagenet" in said


@pytest.fixture(scope="module")
def measured_locally(results, tmp_path_factory):
    """The same results with line searches and a temperature experiment planted: ΔL = 0.1/(1 + 40/B), a cut of ε
    doubles.
    """
    folder = tmp_path_factory.mktemp("local")
    shutil.copytree(results, folder, dirs_exist_ok=True)
    searches = [
        dict(
            goal=0.2,
            batch_size=size,
            repetition=k,
            step=0.3 * size / (size + 40),
            decrease=0.1 / (1 + 40 / size),
            lr=0.1,
        )
        for size in (8, 64, 512)
        for k in range(2)
    ]
    pd.DataFrame(searches).to_csv(folder / "svhn-small" / "line_searches.csv", index=False)
    found = [
        dict(goal=0.2, quantity=name, value=40, low=30, high=50, determined=True)
        for name in ("line search", "b_simple")
    ]
    pd.DataFrame(found).to_csv(folder / "svhn-small" / "local_noise.csv", index=False)
    cuts = [("none", 100), ("lr", 200), ("batch", 110), ("both", 180)]
    ends = [dict(b_simple=b, b_simple_low=0.9 * b, b_simple_high=1.1 * b) for _, b in cuts]
    rows = [dict(goal=0.2, cut=cut, metric=0.1 + b / 1000) | end for (cut, b), end in zip(cuts, ends, strict=True)]
    pd.DataFrame(rows).to_csv(folder / "svhn-small" / "temperature.csv", index=False)
    return folder


def test_the_noise_figure_shows_line_searches_where_there_are_any(measured_locally):
    noise = drawn(partial(registry(measured_locally)["svhn-small-noise"], measured_locally))
    assert "B_noise, line searches of one run" in [text.get_text() for text in noise.legends[0].get_texts()]
    panels = drawn(partial(registry(measured_locally)["fig05"], measured_locally)).axes
    assert panels[0].get_title() == "svhn-small" and panels[1].get_title().startswith("svhn-small: line searches")


def test_the_report_says_what_moved(measured_locally):
    told = temperature(measured_locally)
    moved = "learning rate at 1 of 1 goals; through the batch size at 0 of 1 goals; through both at 1 of 1 goals."
    assert moved in told[-1] and "the metric is 0.2 to 0.2 uncut and 0.3 to 0.3 (the learning rate)" in told[-1]
    *_, table, said = local_noise(measured_locally)
    assert table.splitlines()[-1] == "| 0.2 | 40 [30, 50] | 40 [30, 50] |"
    assert said.startswith("B_noise, line searches over B_simple is 1.0 [") and "1 lies within at 1 of 1 goals" in said


def test_the_noise_figure_shows_the_tables_b_simple(results):
    axes = drawn(partial(registry(results)["svhn-small-noise"], results)).axes[0]
    (shown,) = [line for line in axes.lines if line.get_label() == "B_simple at the goal, runs tuned for it"]
    fits = read_sweep(results / "svhn-small").fits
    assert list(shown.get_xdata()) == [fit.goal for fit in fits]
    assert list(shown.get_ydata()) == [fit.b_simple.value for fit in fits]


def test_the_noise_figure_of_a_sweep_without_anything_positive_is_drawn(tmp_path):
    tables = plant(Planted(seeds=1, batch_sizes=(1024, 2048, 4096)))
    tables.curves["grad_sq_norm"] = -1.0
    analyse(save(tables, tmp_path / "planted-small"), [0.3])
    figure = drawn(partial(registry(tmp_path)["planted-small-noise"], tmp_path))
    assert figure.axes[0].get_yscale() == "linear"
    assert draw(tmp_path, ["planted-small-noise"])


def test_an_unknown_name_lists_the_known_ones(results):
    with pytest.raises(UserError, match=r"no figure 'fig99'; figures: svhn-small-curves, .*fig19"):
        draw(results, ["fig99"])


def test_the_headline_shows_ours_and_the_papers(results):
    figure = drawn(partial(registry(results)["fig04"], results))
    scatter, ratios = figure.axes
    labels = [text.get_text() for text in ratios.get_yticklabels()]
    assert "MNIST: the paper's" in labels and "svhn-small: agree" in labels
    marks = [[line.get_color() for line in axes.lines if line.get_marker() in MARKS] for axes in (scatter, ratios)]
    assert marks[0] == [GREY, READABLE[0], READABLE[0]], "the paper's SVHN, our easier goals, our hardest"
    assert marks[1].count(GREY) == 10 and marks[1].count(READABLE[0]) == 2


def test_the_headline_has_a_panel_for_each_unit_with_enough_tasks(results, tmp_path):
    shutil.copytree(results / "paper", tmp_path / "paper")
    for unit, tasks in {"image": ["a", "b", "c", "d"], "token": ["e", "f", "g"]}.items():
        for task in tasks:
            shutil.copytree(results / "svhn-small", tmp_path / f"{task}-small")
            path = tmp_path / f"{task}-small" / "runs.parquet"
            pd.read_parquet(path).assign(task=task, unit=unit).to_parquet(path)
    *scatters, ratios = drawn(partial(registry(tmp_path)["fig04"], tmp_path)).axes
    assert [axes.get_title() for axes in scatters] == ["images", "observations and others"]
    dashed = [[line for line in axes.lines if line.get_linestyle() == "--"] for axes in scatters]
    (b_crit,) = {sweep.b_crit.value for sweep in summarise(tmp_path)}
    assert dashed[0][0].get_ydata()[0] == b_crit and not dashed[1]
    assert len(ratios.get_yticks()) == 7 + 10


def test_smoke_sweeps_do_not_stand_for_a_task(results, tmp_path):
    shutil.copytree(results / "paper", tmp_path / "paper")
    tables = plant(Planted(seeds=1))
    tables.runs["task"], tables.runs["preset"] = "svhn", "smoke"
    analyse(save(tables, tmp_path / "svhn-smoke"), [0.5, 0.2])
    assert sweep_of(tmp_path, "svhn") is None
    assert len(summarise(tmp_path)) == 1
    assert sweep_of(results, "svhn").name == "svhn-small"


def test_tuned_runs_are_the_best_learning_rates(results):
    runs = tuned_runs(read_sweep(results / "svhn-small"))
    middle = Planted().batch_sizes
    assert sorted(runs["batch_size"].unique()) == list(middle) and len(runs) == 2 * len(middle)


@pytest.mark.parametrize("also", [False, True])
def test_a_single_learning_rate_is_not_called_tuned(results, tmp_path, also):
    """At every batch size, or at all but the smallest."""
    tables = plant(Planted(seeds=1))
    sizes = sorted(tables.runs["batch_size"].unique())
    middle = tables.runs.groupby("batch_size")["lr"].transform("median")
    kept = tables.runs[(tables.runs["lr"] == middle) | (also & (tables.runs["batch_size"] == sizes[0]))]
    curves = tables.curves[tables.curves["run_id"].isin(kept["run_id"])]
    analyse(save(replace(tables, runs=kept, curves=curves), tmp_path / "svhn-small"), [0.5, 0.2])
    titles = [
        learning_rates(read_sweep(folder / "svhn-small"), folder).axes[0].get_title() for folder in (tmp_path, results)
    ]
    alone = f"B = {', '.join(map(number, sizes[1:]))}" if also else "each batch size"
    assert titles[0].endswith(f"not tuned: one learning rate tried at {alone}") and "not tuned" not in titles[1]


def test_b_simple_along_the_run_is_the_planted_one(results):
    truth = Planted()
    levels, ratios = b_simple_along(read_sweep(results / "svhn-small"))
    late = [(level, ratio) for level, ratio in zip(levels, ratios, strict=True) if level < 0.3]
    assert len(late) > 5
    for level, ratio in late:
        assert ratio.value == pytest.approx(truth.noise(truth.progress(level)), rel=0.3)


def test_a_table_that_changed_is_read_again(results, tmp_path):
    folder = tmp_path / "svhn-small"
    shutil.copytree(results / "svhn-small", folder)
    before = read_sweep(folder)
    assert read_sweep(folder) is before
    analyse(folder, [0.5])
    assert [fit.goal for fit in read_sweep(folder).fits] == [0.5]


@pytest.mark.parametrize("value, text", [(0.01, "0.01"), (300, "300"), (10000, "10k"), (2.5e6, "2.5M"), (1e9, "1G")])
def test_numbers_on_axes(value, text):
    assert number(value) == text


@pytest.mark.parametrize("low, high", [(1, 1e9), (0.03, 0.5), (200, 500), (5, 900)])
def test_a_log_axis_has_labels_within_its_range(low, high):
    axes = Figure().subplots()
    log_axis(axes.yaxis, low, high)
    axes.set_ylim(low, high)
    assert 2 <= sum(low <= tick <= high for tick in axes.yaxis.get_major_locator()()) <= 10


def test_open_intervals_are_arrows_and_unknown_values_are_left_out():
    axes = Figure().subplots()
    nan = float("nan")
    estimates = [Estimate(10, 5, 20), Estimate(10, 5, np.inf), Estimate(nan, nan, nan)]
    whiskers(axes, [1, 2, 3], estimates, "black", "o", "x")
    assert len(axes.texts) == 1
    assert list(axes.lines[0].get_xdata()) == [1, 2]


@pytest.mark.parametrize("count, shown", [(3, [0, 1, 2]), (11, [0, 2, 5, 8, 10])])
def test_at_most_so_many_goals_are_shown(count, shown):
    assert spread(range(count), 5 if count > 3 else 3) == shown
