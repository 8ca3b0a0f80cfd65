"""A sweep's runs into the reference: `python -m experiments.cli.publish task=digits preset=small`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.config import load
from experiments.sweep.publishing import publish


def main(arguments: Sequence[str]) -> int:
    """Of the sweep that the overrides name."""
    return told(lambda: publish(load(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
