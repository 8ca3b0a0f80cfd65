"""A sweep that is started and left: `python -m experiments.cli.detach task=…`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.launch.detached import detach


def main(arguments: Sequence[str]) -> int:
    """Arguments as of `experiments.cli.train`."""
    return told(lambda: detach(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
