"""Tables and figures into report.md and report.html: `python -m experiments.cli.report [from=results/own]`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told, where_from
from experiments.errors import UserError
from experiments.report.pages import report
from experiments.tables.reading import written_to


def main(arguments: Sequence[str]) -> int:
    """Takes no other arguments."""
    return told(lambda: _report(arguments))


def _report(arguments: Sequence[str]) -> None:
    results, rest = where_from(arguments)
    if rest:
        raise UserError(f"report: {' '.join(rest)}: takes from=FOLDER alone")
    print(*report(results, written_to(results)), sep="\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
