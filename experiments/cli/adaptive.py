"""A batch size that follows the noise scale, against fixed ones (Fig. 16):
`python -m experiments.cli.adaptive task=… adaptive.<key>=…`.
"""

import sys
from collections.abc import Sequence

from experiments.cli.command import start
from experiments.single_run.adaptive_batch import AdaptiveConfig, measure


def main(arguments: Sequence[str]) -> int:
    """`adaptive.<key>=value` goes to `AdaptiveConfig`, the rest to the suite."""
    return start(arguments, "adaptive", AdaptiveConfig, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
