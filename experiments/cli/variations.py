"""The sweep again with one open choice changed: `python -m experiments.cli.variations task=svhn_vae preset=small`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.single_run.variations import measure


def main(arguments: Sequence[str]) -> int:
    """Arguments as of `experiments.cli.train`."""
    return told(lambda: measure(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
