"""A short while on a GPU, spent on what is missing: `python -m experiments.cli.gpu --minutes 8 --out results/own`."""

import argparse
import os
import sys

from experiments.sweep import gpu_session


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=gpu_session.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", default="results/own")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--preset", default="paper", choices=["smoke", "small", "paper"])
    parser.add_argument("--tasks", nargs="*", default=[], help="these alone")
    parser.add_argument("--sweeps-only", action="store_true", help="neither tests nor benchmarks")
    parser.add_argument("override", nargs="*", help="key=value, as for experiments.cli.train")
    options = parser.parse_args()
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("no CUDA device here; --device cpu does the same on the processor", file=sys.stderr)
            return 2
    os.environ.setdefault("WANDB_MODE", "disabled")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    gpu_session.spend(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
