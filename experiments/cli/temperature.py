"""Does B_simple follow the temperature? (Fig. 15):
`python -m experiments.cli.temperature task=svhn preset=temperature`.
"""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.config import load
from experiments.single_run.temperature import measure


def main(arguments: Sequence[str]) -> int:
    """Arguments as of `experiments.cli.train`."""
    return told(lambda: measure(load(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
