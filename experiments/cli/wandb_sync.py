"""Finished offline runs to Weights & Biases: `python -m experiments.cli.wandb_sync task=digits preset=small`."""

import sys
from collections.abc import Sequence

from experiments.config import load
from experiments.errors import UserError
from experiments.wandb.sync import sync, unmirrored


def main(arguments: Sequence[str]) -> int:
    """Of the sweep that the overrides name."""
    try:
        suite = load(arguments)
        sent, left = sync(suite.records)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"{suite.name}: {sent} runs sent to W&B, {left} left" + (f" ({suite.records}/wandb-sync.log)" if left else "")
    )
    if behind := unmirrored(suite.records):
        print(
            f"{behind} finished runs aren't written for W&B yet ({suite.records}/wandb.log); the next `make sweep` does"
        )
    return 1 if left or behind else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
