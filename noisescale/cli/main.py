"""`noisescale fit runs.csv` and `noisescale advise`, for who has numbers but no sweep of ours."""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from noisescale.cli.drawing import draw_fronts
from noisescale.cli.runs_csv import GoalRuns, read_runs
from noisescale.formatting import number, table, with_interval
from noisescale.pareto.fit import Estimate, ParetoFit, fit_pareto
from noisescale.planning.advice import advise

FIT = """The CSV needs a header with the columns batch_size and steps (optimizer steps to the goal), one row a run, each
run at its batch size's best learning rate. Optional columns: goal (fitted one by one), seed, and reached (false where
the run stopped after `steps` without having reached the goal). Numbers have no thousands separators."""
ADVISE = """example: noisescale advise --b-crit 200 150 260 --step 32:0.05 256:0.08 2048:0.5 --run 256:100000"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """The `noisescale` command. Exit status 2 and one line for what can't be read, 1 where only the picture failed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        options = _parser().parse_args(arguments)
        return options.command(options)
    except ValueError as error:
        print(f"noisescale: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="noisescale", description="How large a batch is still worth paying for.")
    commands = parser.add_subparsers(required=True, metavar="fit | advise")
    fit = commands.add_parser("fit", help="S_min, E_min and B_crit from a CSV of runs", epilog=FIT)
    fit.add_argument("csv", type=Path)
    fit.add_argument(
        "--plot", type=Path, metavar="OUT.png", help="where to draw the front (default: CSV's name + -front.png)"
    )
    fit.add_argument("--no-plot", action="store_true", help="draw nothing")
    fit.set_defaults(command=_fit)

    parts = commands.add_parser("advise", help="what a batch size costs in time and examples", epilog=ADVISE)
    source = parts.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--b-crit", type=_number, nargs="+", metavar="X", help="B_crit or B_simple, and the ends of its interval"
    )
    source.add_argument(
        "--fit", type=Path, metavar="RUNS.csv", help="take B_crit and the steps from a fit to these runs"
    )
    parts.add_argument("--goal", help="which goal of the CSV (needed where it has several)")
    parts.add_argument(
        "--step", required=True, nargs="+", metavar="B:SECONDS[:DEVICES]", help="time of a step at a batch size"
    )
    parts.add_argument("--devices", type=_number, default=1.0, help="devices behind every --step that names none")
    parts.add_argument("--run", metavar="B:STEPS", help="steps that a run to the goal takes at one batch size")
    parts.set_defaults(command=_advise)
    return parser


def _fit(options: argparse.Namespace) -> int:
    runs = read_runs(options.csv)
    fits = {goal: _fitted(group) for goal, group in runs.items()}
    print(_verdict(fits))
    if options.no_plot:
        return 0
    path = options.plot or Path(f"{options.csv.stem}-front.png")
    try:
        draw_fronts(runs, fits, path)
    except ImportError:
        print("noisescale: no picture, matplotlib isn't installed: pip install matplotlib", file=sys.stderr)
        return 1 if options.plot else 0
    except (OSError, ValueError) as error:
        print(f"noisescale: no picture, {path}: {error}", file=sys.stderr)
        return 1
    print(f"Drew {path}.")
    return 0


def _fitted(runs: GoalRuns) -> ParetoFit:
    return fit_pareto(runs.batch_size, runs.steps, reached=runs.reached)


def _verdict(fits: dict[str, ParetoFit]) -> str:
    """The table of fits, with what isn't determined and why below it."""
    header = ["goal", "S_min", "E_min", "B_crit [95%]", "batch sizes", "not reached", "rms of ln S"]
    rows, notes = [], []
    for goal, fit in fits.items():
        estimates = [with_interval(x) for x in (fit.s_min, fit.e_min, fit.b_crit)]
        rows.append([goal, *estimates, str(fit.n), str(fit.n_censored), number(fit.rms, 2)])
        if not fit.determined:
            notes.append(f"Goal {goal}: B_crit {fit.remark}" if goal else f"B_crit {fit.remark}")
    if list(fits) == [""]:
        header, rows = header[1:], [row[1:] for row in rows]
    units = "S_min in steps; E_min and B_crit in the unit of batch_size; in brackets 95% intervals."
    return "\n".join([table(header, rows), *notes, units])


def _advise(options: argparse.Namespace) -> int:
    source = _source(options)
    points = [_numbers("--step", text, (2, 3)) for text in options.step]
    devices = [point[2] if len(point) == 3 else options.devices for point in points]
    run = _numbers("--run", options.run, (2,)) if options.run else None
    advice = advise(
        source,
        [point[0] for point in points],
        [point[1] for point in points],
        devices=devices[0] if len(set(devices)) == 1 else devices,
        run=(run[0], run[1]) if run else None,
    )
    print(advice)
    return 0


def _source(options: argparse.Namespace) -> Estimate | ParetoFit:
    if options.b_crit is not None:
        if options.goal is not None:
            raise ValueError("--goal names a goal of a CSV: give it with --fit, not with --b-crit")
        if len(options.b_crit) not in (1, 3):
            raise ValueError(f"--b-crit takes one number, or three with its interval, got {len(options.b_crit)}")
        value, low, high = options.b_crit if len(options.b_crit) == 3 else options.b_crit * 3
        return Estimate(value, low, high)
    runs = read_runs(options.fit)
    if options.goal is None and len(runs) > 1:
        raise ValueError(f"{options.fit} has several goals, name one with --goal: {', '.join(runs)}")
    goal = next(iter(runs)) if options.goal is None else options.goal
    if goal not in runs:
        raise ValueError(f"{options.fit} has no goal {goal!r}; it has {', '.join(map(repr, runs))}")
    return _fitted(runs[goal])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number; write it without thousands separators, such as 2000 or 0.5"
        ) from None


def _numbers(option: str, text: str, counts: tuple[int, ...]) -> list[float]:
    parts = text.split(":")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in counts:
        form = "B:STEPS" if option == "--run" else "B:SECONDS or B:SECONDS:DEVICES"
        raise ValueError(f"{option} {text!r}: {form} is needed, in numbers, such as 256:0.08")
    return numbers
