"""The report: made from numbers, the same each time, self-contained, and right about the quadratic."""

import json
import re
import shutil
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from synthetic_tables import Planted, plant, save

from experiments.analysis.beside_exact import Truth, truths
from experiments.analysis.beside_paper import beside_paper, words
from experiments.analysis.goal_fit import fits_frame
from experiments.analysis.paper import PAPER_TASKS, points, table1
from experiments.analysis.sweep_fit import analyse
from experiments.analysis.sweep_summary import SweepResult, read_fits, read_sweep, summarise
from experiments.analysis.verdict import tally
from experiments.config import CONFIGS
from experiments.errors import UserError
from experiments.figures.style import COLOURS
from experiments.figures.style import save as save_figure
from experiments.report import evidence
from experiments.report.answers import questions
from experiments.report.claim import opening
from experiments.report.design import designs
from experiments.report.evidence import pictures
from experiments.report.html import to_html
from experiments.report.language import branches, groups, norms_predict
from experiments.report.pages import FOUND, report
from experiments.tables.reading import Tables, write_csv
from experiments.tasks.quadratic import QuadraticConfig
from noisescale.formatting import number, with_interval
from noisescale.pareto.fit import Estimate

PAPER = Path(__file__).parents[3] / "results" / "paper"
SMALL = CONFIGS.parent / "results" / "reference" / "digits-small"
SIZES = (1, 4, 16, 64, 256, 1024)
GOALS = [0.3, 0.1]


def exact_quadratic() -> Tables:
    """A quadratic sweep whose every number is its expectation, at each goal's best learning rate and below it."""
    config = QuadraticConfig(name="quadratic")
    problem = config.theory()
    runs, curves = [], []
    for size in SIZES:
        best = [problem.best_run(size, goal).lr for goal in GOALS]
        last = int(2 * problem.expected_steps(size, best[-1], GOALS[-1])) + 2
        for lr in sorted({float(f"{lr * factor:.4g}") for lr in best for factor in (0.8, 1.0)}):
            step = np.unique(np.concatenate([[0], np.round(2 ** np.arange(0, np.log2(last), 1 / 8)), [last]])).astype(
                int
            )
            moments = problem.second_moments(size, lr, step)
            within = [np.arange(a, max(b, a + 1)) for a, b in zip(np.concatenate([[0], step[:-1]]), step, strict=True)]
            square = [(problem.second_moments(size, lr, steps) @ problem.curvature**2).mean() for steps in within]
            run_id = f"quadratic-{len(runs):03d}"
            curves.append(
                pd.DataFrame(
                    dict(
                        run_id=run_id, step=step, examples=step * size, seconds=0.0, loss=problem.loss(moments),
                        metric=problem.loss(moments), grad_sq_norm=square, trace_cov=problem.cov.sum(),
                        noise_examples=np.maximum(np.diff(step, prepend=0) * size, 64), noise_steps=1,
                        grad_hess_grad=moments @ problem.curvature**3, trace_hess_cov=problem.curvature @ problem.cov,
                    )
                )
            )  # fmt: skip
            science = {"task": {"name": "quadratic"}, "measure": {"probe_examples": 64}}
            runs.append(
                dict(
                    run_id=run_id, task="quadratic", preset="small", unit="example", sample_size=1, metric="loss",
                    direction="min", data="exact", parameters=128, optimizer="sgd", batch_size=size, lr=lr, seed=0,
                    status="not_reached", step=last, config=json.dumps(science), seconds=90.0, eval_seconds=9.0,
                    measure_seconds=0.9, device="cpu", versions="torch 2", finished_at="2026-01-01T00:00:00",
                    git_sha="0123456789", record_version=2,
                )
            )  # fmt: skip
    return Tables(Path("quadratic-small"), pd.DataFrame(runs), pd.concat(curves, ignore_index=True))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    shutil.copytree(PAPER, folder / "paper")
    tables = plant(Planted(seeds=2, norm_noise=1.0, scatter=0.05))
    tables.runs["task"] = "mnist"
    extra = {"device": "cpu", "versions": "torch 2", "git_sha": "0123456789", "measure_seconds": 0.1}
    analyse(
        save(Tables(tables.folder, tables.runs.assign(**extra), tables.curves), folder / "mnist-small"), [0.3, 0.2, 0.1]
    )
    analyse(save(exact_quadratic(), folder / "quadratic-small"), GOALS)
    (folder / "figures").mkdir()
    for path in pictures(summarise(folder)):
        Image.new("RGB", (40, 30), "white").save(folder / path)
    return folder


def test_the_report_is_the_same_twice_and_self_contained(results):
    first = [path.read_bytes() for path in report(results)]
    assert [path.read_bytes() for path in report(results)] == first
    html = first[1].decode()
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert sources and all(source.startswith("data:image/png;base64,") for source in sources)


def test_the_verdict_comes_first_and_every_task_of_the_paper_is_there(results):
    text = report(results)[0].read_text()
    verdicts = [fit.verdict for fit in read_sweep(results / "mnist-small").fits]
    first = text.split("\n\n")[1]
    assert first.startswith("The claim: ") and "Too few tasks are measured here" in first
    assert re.search(r"of 2 sweeps: (1 agrees, 1 can't tell|2 agree)\. By goals: agree at \d of 5 goals", first)
    assert f"| mnist-small | **agree** ({tally(verdicts)}; at the hardest, 0.1, agree) |" in text
    for task in PAPER_TASKS:
        assert f"| **{task.name}** |" in text
    assert "`make sweep TASK=svhn_vae`" in text and "`make sweep TASK=mnist PRESET=paper`" in text
    assert "| mnist-small | 60 | 1 min | 10% | 10% | cpu | torch 2 | 0123456 | 2026-01-01 – 2026-01-01 |" in text
    assert "nan" not in text.lower()


def test_the_readme_gets_the_answer_and_the_five_tasks_that_are_there(results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n\n{FOUND[0]}\nold\n{FOUND[1]}\nafter\n")
    report(results, readme=readme)
    lines = readme.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "old" not in lines
    assert lines[4].startswith("The claim: ")
    fit = read_sweep(results / "mnist-small").fits[-1]
    values = f"{with_interval(fit.b_crit)} | {with_interval(fit.b_simple_avg)}"
    rows = [line for line in lines if line.startswith("| ")]
    assert rows[2:] == [f"| MNIST, images | {values} | yes, within a factor of 3 |"]


def planted_sweeps(folder: Path, factors: Sequence[float]) -> list[SweepResult]:
    """Tasks of ours that differ in B_crit a thousandfold, with B_simple `factors` times it, one factor a task."""
    for i, factor in enumerate(factors):
        fits = read_fits(SMALL / "fits.csv")
        scale = 1000 ** (i / (len(factors) - 1))
        changed = [
            replace(
                fit,
                b_crit=Estimate(scale * step, scale * step / 1.2, scale * step * 1.2),
                b_simple_avg=Estimate(factor * scale * step, factor * scale * step / 1.1, factor * scale * step * 1.1),
                b_crit_status="determined",
                verdict="agree",
            )
            for step, fit in zip((1, 2), fits, strict=False)
        ]
        own = folder / f"task{i}-small"
        shutil.copytree(SMALL, own)
        write_csv(fits_frame(changed), own / "fits.csv")
        runs = pd.read_parquet(own / "runs.parquet")
        runs.assign(task=f"task{i}").to_parquet(own / "runs.parquet")
    return summarise(folder)


@pytest.mark.parametrize(
    "factors, said",
    [
        ((1.1, 0.9, 1.2, 1.0, 0.9, 1.1), "For images, B_simple predicts B_crit better than a constant."),
        ((900, 1100, 1000, 900, 1200, 1000), "better than a constant once a factor is taken out."),
        ((1e4, 1e-4, 1e4, 1e-4, 1e4, 1e-4), "For images, B_simple predicts B_crit worse than a constant."),
    ],
    ids=["holds", "off by a factor", "fails"],
)
def test_the_opening_says_what_the_sweeps_say(tmp_path, factors, said):
    sweeps = planted_sweeps(tmp_path, factors)
    first, _, _, _, heading, rivals, together, _ = opening(sweeps, tmp_path)
    assert said in first and "over all determined goals" in first
    assert heading == "## B_simple beside cheap guesses" and "along a run" in together
    assert [row.split(" | ")[1] for row in rivals.splitlines()[2:]] == [
        "B_simple",
        "a constant",
        "parameters",
        "examples in the data",
        "B_simple at step 0",
    ]


def test_every_sweeps_design_is_counted_and_what_is_missing_has_a_price(results):
    sweeps = summarise(results)
    said, rows, _ = designs(sweeps)
    goals = [(sweep, fit) for sweep in sweeps for fit in sweep.determined]
    passing = [fit for _, fit in goals if not fit.design]
    assert (
        f"of 2 sweeps pass all four checks at the hardest goal with a determined B_crit, and {len(passing)} of" in said
    )
    mnist = next(row for row in rows.splitlines() if row.startswith("| mnist-small"))
    cells = mnist.strip("| ").split(" | ")
    assert cells[3] == "**2**" and cells[-1].startswith("3 seeds at 6 batch sizes: ")
    assert float(cells[-1].partition(": ")[2].partition(";")[0]) == pytest.approx(6 * 3 * 1.0 / 3600, rel=0.05)


def test_words_follow_from_the_numbers(results):
    sweep = read_sweep(results / "mnist-small")
    pairs = beside_paper(sweep, results)
    assert [pair.goal for pair in pairs] == [0.3, 0.2, 0.1]
    for pair in pairs:
        assert pair.ratio("b_crit") == pytest.approx(pair.ours["b_crit"].value / pair.theirs.b_crit.value)
    low, high = (f(pair.ratio("b_crit") for pair in pairs) for f in (min, max))
    said = words(pairs)
    assert said[0].startswith("**B_crit: they disagree.**") and f"{low:.1f} to {high:.1f} times the paper's" in said[0]
    assert "**The trend agrees.**" in said[-1]
    assert words([]) == ["No goal is determined in both, so there is nothing to compare."]


def test_our_refit_of_the_papers_own_points_agrees_with_itself(results, tmp_path):
    """The paper's MNIST points, planted as a sweep of ours."""
    rows = points(results)
    rows = rows[(rows["task"] == "MNIST_SGD") & (rows["goal"] == 0.1)]
    runs, curves = [], []
    for i, point in enumerate(rows.itertuples()):
        run_id = f"mnist-{i:02d}"
        runs.append(dict(exact_quadratic_row(run_id), batch_size=point.batch_size, step=int(2 * point.steps)))
        curves.append(
            pd.DataFrame(dict(run_id=run_id, step=[0, point.steps / 2, point.steps * 2], metric=[0.9, 0.2, 0.0]))
        )
    table = pd.concat(curves).assign(
        grad_sq_norm=1.0, trace_cov=30.0, noise_examples=64, grad_hess_grad=np.nan, trace_hess_cov=np.nan
    )
    analyse(save(Tables(tmp_path, pd.DataFrame(runs), table), tmp_path / "mnist-small"), [0.1])
    (pair,) = beside_paper(read_sweep(tmp_path / "mnist-small"), results)
    assert pair.ratio("b_crit") == pytest.approx(1, rel=1e-3)
    assert "they agree" in words([pair])[0]


def exact_quadratic_row(run_id: str) -> dict:
    return dict(
        run_id=run_id, task="mnist", preset="small", unit="image", sample_size=1, metric="train_error", direction="min",
        data="paper", parameters=1, optimizer="sgd", lr=0.1, seed=0, status="reached",
        config='{"measure": {"probe_examples": 64}}', record_version=2, finished_at="2026-01-01T00:00:00",
    )  # fmt: skip


def test_exact_quadratic_tables_agree_with_the_theory(results):
    found = truths(read_sweep(results / "quadratic-small"))
    assert [truth.goal for truth in found] == GOALS
    for truth in found:
        assert abs(truth.off("B_crit")) < 0.15
        assert abs(truth.off("B_simple at the goal")) < 0.01 and abs(truth.off("B_noise at the goal")) < 0.01
        assert abs(truth.off("B_simple averaged")) < 0.1 and abs(truth.off("B_noise averaged")) < 0.1


def test_closeness_to_exact_answers_does_not_cancel_between_goals(results, monkeypatch):
    found = [
        Truth(0.3, {"B_crit": (Estimate(13.0, 9.0, 14.0), 10.0), "B_noise averaged": (Estimate(9.0, 8.0, 11.0), 10.0)}),
        Truth(0.1, {"B_crit": (Estimate(60.0, 50.0, 99.0), 100.0)}),
    ]
    monkeypatch.setattr(evidence, "truths", lambda sweep: found)
    rows = evidence.against_exact_answers([read_sweep(results / "quadratic-small")])[2].splitlines()
    assert rows[3] == "| 0.1 | 60 [50, 99] / 100 (-40%) | – |"
    assert rows[4] == "| RMS difference | 35.4% | 10.0% |"
    assert rows[5] == "| largest difference | -40.0% | -10.0% |"
    assert rows[6] == "| interval holds the exact value | at 1 of 2 goals | at 1 of 1 goals |"


def test_branches_and_groups_are_shown_where_they_were_measured(results, tmp_path):
    folder = tmp_path / "mnist-small"
    shutil.copytree(results / "mnist-small", folder)
    bare = read_sweep(folder)
    assert branches([bare]) == groups([bare]) == []
    point = dict(goal=0.2, examples=900, loss=1.0, branch_examples=900, tolerance=0.02, smallest=4, largest=64)
    low = dict(b_branch=20, b_branch_low=10, b_branch_high=40, b_simple=30, b_simple_low=30, b_simple_high=30)
    never = low | dict(goal=0.1, b_branch=np.inf, b_branch_high=np.inf)
    pd.DataFrame([point | low, point | never]).to_csv(folder / "branch_points.csv", index=False)
    half = bare.tables.curves.assign(group="head", trace_cov=bare.tables.curves["trace_cov"] / 2)
    half[["run_id", "step", "group", "trace_cov", "grad_sq_norm", "noise_examples"]].to_parquet(
        folder / "groups.parquet"
    )
    blocks = branches([bare])
    text = blocks[-2].splitlines()
    swept = with_interval(bare.fits[1].b_crit)
    assert text[2].startswith(f"| 0.2 | {swept} | 20 [10, 40] | ") and text[2].endswith("| 1.5 [0.75, 3.0] |")
    assert text[3].startswith("| 0.1 | ") and "| above 64 |" in text[3]
    share = number(30 / bare.fits[1].b_crit.value, 2)
    assert f"B_simple at the trunk's weights {share} to " in blocks[-1] or f" to {share} times, averaged" in blocks[-1]
    assert "1 times only a bound" in blocks[-1] and ": not here as far as it can be told; " in blocks[-1]
    rows = [re.findall(r"\| ([\d.,]+) \[", row + " |") for row in groups([bare])[-1].splitlines()[2:]]
    for whole, part in rows:
        assert float(part) == pytest.approx(float(whole) / 2, rel=0.15)


def test_norm_layers_predict_the_total_only_by_one_factor():
    same = [Estimate(0.1, 0.05, 0.2), Estimate(0.15, 0.1, 0.3)]
    assert "one factor from 0.10 to 0.20 lies in all" in norms_predict(same)
    assert "no: no one factor" in norms_predict([*same, Estimate(0.5, 0.4, 0.8)])
    assert "Not determined" in norms_predict([same[0], Estimate(np.nan, np.nan, np.nan)])


def test_table1_of_the_paper(results):
    rows = table1(results)
    assert list(rows) == [task.name for task in PAPER_TASKS]
    assert rows["MNIST"]["b_crit"].value == 200 and rows["ImageNet"]["b_simple_avg"].value == 30_000
    assert rows["Dota 5v5"]["b_crit_start"].value != rows["Dota 5v5"]["b_crit_start"].value
    assert (rows["Atari, 7 games"]["b_crit"].low, rows["Atari, 7 games"]["b_crit"].high) == (400, 8000)


def test_missing_pieces_have_one_line_errors(results, tmp_path):
    shutil.copytree(results, tmp_path / "copy")
    (tmp_path / "copy" / "figures" / "fig04.png").unlink()
    with pytest.raises(UserError, match=r"no .*fig04\.png; run `make figures`"):
        report(tmp_path / "copy")
    with pytest.raises(UserError, match="no analysed sweep"):
        report(tmp_path)


def test_html_keeps_a_value_and_its_interval_together(tmp_path):
    html = to_html("at 39 [25, 60]\n\n| a | b |\n| --- | --- |\n| x | 39 [25, 60] |\n", "t", tmp_path)
    assert "<p>at 39\u00a0[25,\u00a060]</p>" in html
    assert "<td>39 [25,\u00a060]</td>" in html, "in a narrow cell the interval stands below its value"


def test_what_may_be_too_wide_for_a_phone_scrolls_by_itself(tmp_path):
    for name, inches in (("wide", 7), ("narrow", 3.4)):
        save_figure(Figure(figsize=(inches, 1)), tmp_path / name)
    text = "an interval in a sentence that goes on for a while"
    html = to_html(f"| a |\n| --- |\n| {text} |\n\n![A](wide.png)\n\n![B](narrow.png)\n", "t", tmp_path)
    assert '<div class="scroll"><table>' in html and f'<td class="long">{text}</td>' in html
    assert '<div class="wide scroll" style="--inches: 7"><img src="data:image/png;base64,iVBOR' in html
    assert '<div class="narrow" style="--inches: 3.4"><img src="data:image/png;base64,iVBOR' in html
    assert 'alt="A"' in html and 'alt="B"' in html


def test_the_colours_of_the_style_survive_embedding(tmp_path):
    """Among as many shades as make room for few: each colour stays itself, and everything stays close to itself."""
    colours = [tuple(round(255 * v) for v in to_rgb(colour)) for colour in COLOURS]
    shades = [tuple(round(255 * v) for v in colormaps["viridis"](at)[:3]) for at in np.linspace(0, 1, 256)]
    pale = [tuple((255 + v) // 2 for v in colour) for colour in colours]
    picture = np.repeat([[*colours, *pale, *shades]], 4, axis=0).astype(np.uint8)
    Image.fromarray(picture).save(tmp_path / "x.png")
    (data,) = re.findall(r"data:image/png;base64,([^\"]+)", to_html("![x](x.png)", "t", tmp_path))
    shown = np.asarray(Image.open(BytesIO(b64decode(data))).convert("RGB"))
    assert shown.shape == picture.shape
    assert [tuple(pixel) for pixel in shown[0, : len(colours)]] == colours
    assert np.abs(shown.astype(int) - picture).max() < 32


def test_the_ladder_is_climbed_at_equal_errors_too(tmp_path):
    for task, start, goals in (("mnist", 20.0, [0.5, 0.2, 0.1]), ("svhn", 80.0, [0.5, 0.2])):
        tables = plant(Planted(start=start, seeds=2, norm_noise=1.0, scatter=0.05))
        tables.runs["task"] = task
        analyse(save(tables, tmp_path / f"{task}-small"), goals)
    ladder = next(line for line in questions(summarise(tmp_path)) if "ladder" in line)
    equal = ladder.partition("At equal errors: ")[2]
    assert equal.startswith("at 0.2, mnist-small ") and equal.count("(yes; ") == 1 and equal.endswith(", yes).")
    assert ladder.count("no") == 0
