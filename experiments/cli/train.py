"""`python -m experiments.cli.train task=digits preset=small`: a sweep. With `hydra.mode=RUN batch_size=64 lr=0.1
seed=0`: one run.
"""

import os
import sys

import hydra

from experiments.cli.command import told
from experiments.config import CONFIGS, load
from experiments.launch.job import train

MULTIRUN = ("-m", "--multirun")  # a sweep is one anyway; Hydra's other flags show or print something


def main() -> int:
    """Refuse what is wrong before anything trains, then hand over to Hydra."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come through as they are
    try:
        return told(_start)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130


def _start() -> None:
    if not any(argument.startswith("-") and argument not in MULTIRUN for argument in sys.argv[1:]):
        load([argument for argument in sys.argv[1:] if argument not in MULTIRUN])
    hydra.main(config_path=str(CONFIGS.resolve()), config_name="config", version_base="1.3")(train)()


if __name__ == "__main__":
    sys.exit(main())
