"""The command line: from a CSV to the verdict and the picture, and one line for everything that can't be read."""

import runpy
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from noisescale.cli.drawing import fronts
from noisescale.cli.main import main
from noisescale.cli.runs_csv import GoalRuns, read_runs
from noisescale.pareto.fit import fit_pareto

PAPER = Path(__file__).parents[3] / "results" / "paper" / "pareto_points_digitised.csv"
BATCH = 2 ** np.arange(2, 12)
GOOD = "batch_size,steps\n" + "".join(f"{b},{100 * (1 + 60 / b):.1f}\n" for b in BATCH)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes runs.csv into an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def write(content):
        Path("runs.csv").write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def test_fit_prints_the_verdict_and_draws_the_front(write, capsys):
    pytest.importorskip("matplotlib")
    write(GOOD)
    assert main(["fit", "runs.csv"]) == 0
    out = capsys.readouterr().out
    assert "60.0" in out
    assert "B_crit" in out
    assert "not determined" not in out
    picture = Path("runs-front.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert main(["fit", "runs.csv", "--plot", "again.png"]) == 0
    assert Path("again.png").read_bytes() == picture


def test_goals_seeds_and_unreached_runs(write, capsys):
    rows = ["task, Goal ,seed,batch_size,steps,reached"]
    for goal, b_crit in (("0.1", 20), ("0.01", 300)):
        for b in BATCH:
            for seed in (0, 1):
                steps = 100 * (1 + b_crit / b) * (1.02 if seed else 1 / 1.02)
                missed = goal == "0.01" and b == 4
                rows.append(f"x,{goal},{seed},{b},{3000 if missed else steps},{'False' if missed else 'TRUE'}")
    write("\n".join(rows))
    assert main(["fit", "runs.csv", "--no-plot"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = lines[2].split(), lines[3].split()
    assert (first[0], second[0]) == ("0.1", "0.01")
    assert lines[3].rstrip().split()[-3:-1] == ["9", "1"]
    assert not list(Path().glob("*.png"))
    runs = read_runs(Path("runs.csv"))
    assert len(runs["0.1"].steps) == 20
    assert runs["0.01"].reached.count(False) == 2


def test_what_is_not_determined_is_said_with_the_reason(write, capsys):
    write("batch_size,steps\n" + "".join(f"{b},{100 + b % 3}\n" for b in BATCH))
    assert main(["fit", "runs.csv", "--no-plot"]) == 0
    assert "B_crit not determined: no bend: steps may not depend on the batch size" in capsys.readouterr().out


def test_the_papers_points(capsys, tmp_path):
    header, *rows = PAPER.read_text().splitlines()
    runs = tmp_path / "mnist.csv"
    runs.write_text("\n".join([header, *(row for row in rows if row.startswith("MNIST_SGD"))]))
    assert main(["fit", str(runs), "--plot", str(tmp_path / "front.pdf")]) == 0
    out = capsys.readouterr().out
    assert "not determined" not in out
    assert len(out.splitlines()) == 2 + 11 + 2
    assert (tmp_path / "front.pdf").read_bytes().startswith(b"%PDF")


def picture(*goals):
    """The axes of a picture, laid out; each goal is its batch sizes and its B_crit, and misses the first of them."""
    runs = {}
    for k, (batch, b_crit) in enumerate(goals):
        steps = (12000 + 1000 * k) * (1 + b_crit / batch)
        runs[f"${k}"] = GoalRuns(list(batch), list(steps), [False] + [True] * (len(batch) - 1))
    figure = fronts(runs, {goal: fit_pareto(r.batch_size, r.steps, reached=r.reached) for goal, r in runs.items()})
    figure.draw_without_rendering()
    return figure.axes[0]


@pytest.mark.parametrize("spread", [1.02, 1.5, 6, 30, 1e3, 1e7])
def test_tick_labels_of_narrow_and_wide_pictures_do_not_touch(spread):
    pytest.importorskip("matplotlib")
    axes = picture((np.geomspace(64, 64 * spread, 8), 300))
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        labels = [label for at, label in ticks if low <= at <= high]
        assert len({label.get_text() for label in labels}) == len(labels) > 1
        assert not any(a.get_window_extent().overlaps(b.get_window_extent()) for a, b in combinations(labels, 2))


def test_the_picture_has_steps_to_the_right_examples_up_and_hollow_marks_where_not_reached():
    pytest.importorskip("matplotlib")
    axes = picture((BATCH, 60))
    assert "steps S" in axes.get_xlabel()
    assert "examples E" in axes.get_ylabel()
    _, reached, missed, _ = axes.lines
    assert reached.get_ydata() == pytest.approx(BATCH[1:] * reached.get_xdata())
    assert missed.get_xdata() == pytest.approx([12000 * (1 + 60 / 4)])
    assert missed.get_markerfacecolor() == "white"
    assert axes.get_legend().get_texts()[0].get_text().startswith("$0: ")


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_every_goal_has_its_own_colour_readable_on_white(count):
    pytest.importorskip("matplotlib")
    axes = picture(*[(BATCH, 60)] * count)
    colours = {tuple(line.get_color()[:3]) for line in axes.lines[:-1]}
    assert len(colours) == count
    for colour in colours:
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
        assert 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) >= 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "runs.csv: the file is empty"),
        ("\n \n", "runs.csv: the file is empty"),
        ("batch_size,steps\n", "no rows under the header"),
        ("batch,steps\n1,2\n", "line 1: no column batch_size, found 'batch', 'steps'"),
        ("a,b\n1,2\n", "no column batch_size or steps"),
        ("1,2\n2,3\n", "no column batch_size or steps, found '1', '2'"),
        ("batch_size;steps\n1;2\n", "separated by ';', use commas"),
        ("batch_size\tsteps\n1\t2\n", "separated by '\\t', use commas"),
        ("batch_size,steps,steps\n1,2,3\n", "column steps is there 2 times"),
        (GOOD + "0,100\n", "line 12: batch_size is '0'; a number above 0, 1e-06 to 1e+18, is needed"),
        (GOOD + "8,-1\n", "line 12: steps is '-1'; a number above 0"),
        (GOOD + "8,nan\n", "line 12: steps is 'nan', not a finite number; for a run that did not reach"),
        (GOOD + "inf,5\n", "line 12: batch_size is 'inf', not a finite number"),
        (GOOD + "8,1e999\n", "line 12: steps is '1e999'; a number above 0, 1e-06 to 1e+18, is needed"),
        (GOOD + "8,many\n", "line 12: steps is 'many', not a number"),
        (GOOD + "8,12 steps\n", "line 12: steps is '12 steps', not a number"),
        (GOOD + "8,1OO\n", "line 12: steps is '1OO', not a number; write it in digits"),
        (GOOD + "8,100%\n", "line 12: steps is '100%', not a number; write it in digits"),
        (GOOD + '8,"1000,5"\n', "line 12: steps is '1000,5', not a number; write it in digits, with a point"),
        (GOOD + "8,1e-300\n", "line 12: steps is '1e-300'; a number above 0"),
        (GOOD + "8," + "9" * 5000 + "\n", "line 12: steps is '99999999999999999999…9999999999'; a number above 0"),
        (GOOD + "8," + "x" * 5000 + "\n", "line 12: steps is 'xxxxxxxxxxxxxxxxxxxx…xxxxxxxxxx', not a number"),
        ("x" * 5000 + ",steps\n1,2\n", "no column batch_size, found 'xxxxxxxxxxxxxxxxxxxx…xxxxxxxxxx', 'steps'"),
        (GOOD + "0x10,12\n", "line 12: batch_size is '0x10', not a number"),
        (GOOD + "8,\n", "line 12: steps is empty"),
        (GOOD + '"1,024",99\n', "line 12: batch_size is '1,024'; numbers must have no thousands separators"),
        (GOOD + '8,"1,000.5"\n', "line 12: steps is '1,000.5'; numbers must have no thousands separators"),
        (GOOD + '8,"1.000,5"\n', "line 12: steps is '1.000,5'; numbers must have no thousands separators"),
        (GOOD + '8,"1,00,000"\n', "line 12: steps is '1,00,000'; numbers must have no thousands separators"),
        (GOOD + "1,024,99\n", "line 12: 3 cells, but the header has 2; numbers must have no thousands separators"),
        (GOOD + "1_024,99\n", "line 12: batch_size is '1_024'; numbers must have no thousands separators"),
        (GOOD + '1024,"1.024.000"\n', "line 12: steps is '1.024.000'; numbers must have no thousands separators"),
        (GOOD + "8,1000,5\n", "line 12: 3 cells, but the header has 2; numbers must have no thousands separators and"),
        ("batch_size,steps\n4,12.000\n8,6.500\n16,4.200\n", "line 2: steps is '12.000', with a point that may mean"),
        ("batch_size,steps\n512,9\n1.024,8\n", "line 3: batch_size is '1.024'"),
        ('batch_size,steps\n4,"100\n8,60\n16,40\n32,30\n', 'line 2: a quote (") opens here and is never closed'),
        ('batch_size,steps,note\n4,9,\n8,6,"x\n9,4,\n', 'line 3: a quote (") opens here and is never closed'),
        ('batch_size,steps\n4,"10\n8,"6"\n', "line 2: ',' expected after '\"'; check its quotes"),
        ('batch_size,steps,note\n4,9,"x\ny"\n8,"6\nx",\n', "line 4: steps is '6\\nx', not a number"),
        (",\n,\n", "runs.csv: the file is empty"),
        (GOOD + "\n\n8\n", "line 14: 1 cells, but the header has 2"),
        (GOOD + "\u0661\u0662,99\n", "line 12: batch_size is '\u0661\u0662', not a number"),
        ("batch_size,steps\n" + "64,100\n" * 5, "every row has batch size 64; a fit needs at least 4 different ones"),
        ("batch_size,steps,reached\n1,2,maybe\n", "line 2: reached is 'maybe'; true or false is needed"),
        ("goal,batch_size,steps\n,1,2\n", "line 2: goal is empty"),
        ("seed,batch_size,steps\n0,1,2\n0,2,2\n0,1,3\n", "line 4: the same goal, batch size and seed as line 2"),
        ("batch_size,steps\n1,caf\u00e9\n".encode("latin-1"), "line 2: byte 0xe9 isn't UTF-8; save the file as UTF-8"),
        (GOOD.encode("utf-16"), "line 1: byte 0xff isn't UTF-8"),
        ("batch_size,steps\n1," + "9" * 200_000 + "\n", "line 2: field larger than field limit"),
    ],
)  # fmt: skip
def test_a_bad_csv_gets_one_line_with_the_place_and_the_reason(write, capsys, content, words):
    write(content)
    assert main(["fit", "runs.csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("noisescale: runs.csv")
    assert words in captured.err
    assert not list(Path().glob("*.png"))


@pytest.mark.parametrize(("cell", "ways"), [("12.000", "12000 or 12.0"), ("6.543", "6543 or 6.5430")])
def test_a_point_before_three_digits_is_refused_with_both_ways_out_and_both_work(write, capsys, cell, ways):
    runs = "batch_size,steps\n4,{}\n8,900\n16,3.100\n32,2.800\n"
    write(runs.format(cell))
    assert main(["fit", "runs.csv", "--no-plot"]) == 2
    assert capsys.readouterr().err.endswith(
        f"line 2: steps is '{cell}', with a point that may mean thousands or decimals; write {ways}\n"
    )
    thousands, decimals = ways.split(" or ")
    write(runs.format(thousands).replace("3.100", "3100").replace("2.800", "2800"))
    assert read_runs(Path("runs.csv"))[""].steps[0] == float(thousands)
    write(runs.format(decimals))
    assert read_runs(Path("runs.csv"))[""].steps[0] == float(cell)


@pytest.mark.parametrize("cells", [("0.125", "1.000"), ("900.5", "1.000"), ("1234.567", "1.000"), (".5", "1.000")])
def test_a_point_that_can_only_be_decimal_settles_its_column(write, cells):
    write("batch_size,steps\n" + "".join(f"{4 * (k + 1)},{cell}\n" for k, cell in enumerate(cells)))
    assert read_runs(Path("runs.csv"))[""].steps == [float(cell) for cell in cells]


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbf" + GOOD.encode(), GOOD.replace("\n", "\r\n"), GOOD.replace("\n", "\r"), "\n" + GOOD + "\n\n"],
)
def test_byte_order_marks_line_ends_and_blank_lines_do_no_harm(write, content, capsys):
    write(content)
    assert main(["fit", "runs.csv", "--no-plot"]) == 0
    assert "60.0" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["missing.csv", "."])
def test_a_path_that_is_no_file(write, capsys, path):
    assert main(["fit", path]) == 2
    assert capsys.readouterr().err.startswith(f"noisescale: {path}: ")


def test_no_picture_without_matplotlib(write, capsys, monkeypatch):
    write(GOOD)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["fit", "runs.csv"]) == 0
    captured = capsys.readouterr()
    assert "60.0" in captured.out
    assert "matplotlib isn't installed" in captured.err
    assert main(["fit", "runs.csv", "--plot", "x.png"]) == 1


@pytest.mark.parametrize("path", ["nowhere/front.png", "front.nonsense"])
def test_a_picture_that_cannot_be_written_costs_only_itself(write, capsys, path):
    pytest.importorskip("matplotlib")
    write(GOOD)
    assert main(["fit", "runs.csv", "--plot", path]) == 1
    captured = capsys.readouterr()
    assert "60.0" in captured.out
    assert f"no picture, {path}: " in captured.err


def test_advise_from_a_number(capsys):
    assert (
        main(
            ["advise", "--b-crit", "200", "150", "260", "--step", "32:0.05", "256:0.08", "2048:0.5", "--run", "256:1e5"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "B_crit 200 [150, 260]. B = 256 is the fastest" in out
    assert "100,000" in out


def test_advise_from_runs_and_devices_for_each_batch(write, capsys):
    write(GOOD)
    assert main(["advise", "--fit", "runs.csv", "--step", "16:0.1:1", "64:0.1:4", "256:0.1:16"]) == 0
    out = capsys.readouterr().out
    assert "device-hours" in out
    assert "B_crit 60" in out


def test_advise_from_runs_that_determine_nothing_says_so(write, capsys):
    write("batch_size,steps\n" + "".join(f"{b},{100 + 20 * (b % 7) + 30 / b}\n" for b in BATCH))
    assert main(["advise", "--fit", "runs.csv", "--step", "16:0.1", "64:0.1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("B_crit not determined: no bend")
    assert "[<3.0]" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--b-crit", "1", "2", "--step", "1:1", "2:1"], "--b-crit takes one number, or three"),
        (["--b-crit", "9", "--goal", "x", "--step", "1:1", "2:1"], "--goal names a goal of a CSV"),
        (
            ["--b-crit", "2,000", "--step", "1:1", "2:1"],
            "--b-crit: '2,000' is not a number; write it without thousands",
        ),
        (["--b-crit", "5", "--devices", "x", "--step", "1:1"], "--devices: 'x' is not a number"),
        (["--b-crit", "5"], "arguments are required: --step; see noisescale advise --help"),
        (["--b-crit", "-5", "--step", "1:1", "2:1"], "B_crit must be a positive number"),
        (["--b-crit", "5", "9", "2", "--step", "1:1", "2:1"], "low ≤ value ≤ high, got value 5, low 9, high 2"),
        (["--b-crit", "5", "--step", "1:1"], "two batch sizes or more"),
        (["--b-crit", "5", "--step", "1:1", "x:2"], "--step 'x:2'"),
        (["--b-crit", "5", "--step", "1:1", "2:1", "--run", "7"], "--run '7': B:STEPS is needed"),
        (["--fit", "runs.csv", "--step", "1:1", "2:1"], "several goals, name one with --goal: a, b"),
        (["--fit", "runs.csv", "--goal", "c", "--step", "1:1", "2:1"], "no goal 'c'; it has 'a', 'b'"),
    ],
)
def test_bad_arguments_of_advise_get_one_line(write, capsys, arguments, words):
    write("goal,batch_size,steps\na,1,2\nb,2,1\n")
    assert main(["advise", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_as_a_module(write, capsys, monkeypatch):
    write(GOOD)
    monkeypatch.setattr(sys, "argv", ["noisescale", "fit", "runs.csv", "--no-plot"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("noisescale", run_name="__main__")
    assert exit_.value.code == 0
    assert "60.0" in capsys.readouterr().out


@pytest.mark.slow
def test_as_a_process_with_an_ascii_terminal(write):
    write(GOOD)
    command = [sys.executable, "-m", "noisescale", "fit", "runs.csv", "--no-plot"]
    done = subprocess.run(
        command,
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(PAPER.parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"60.0" in done.stdout
