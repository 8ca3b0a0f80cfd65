"""What measuring costs, over the same loop without it: `python benchmarks/tracker.py [section ...] [model ...]`.

Sections are accumulation, ddp and examples. Steps with and without the tracker take turns on one thread; printed is the
median ratio of their times with its 95% interval, from the ranks of the turns. Both run on one and the same model,
because two equal models differ by several per cent in where their tensors lie; DDP's bucket hook stays, so that it has
two. Models are built anew several times. Times are CPU seconds of the process; under DDP, of both gloo ranks together,
so that waiting for each other doesn't hide anything.

glibc gives large buffers back to the system and takes them again, more often or less with where small tensors happen to
lie; `MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000` takes that out of both loops.
"""

import contextlib
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from noisescale import NoiseTracker

MODELS, TURNS = 6, 17
LATER = 1000  # measured steps: ranks meet after every one of the first, which a long run doesn't notice
MICRO, PARTS = 32, 4


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1])[None])
        return self.head(self.norm(self.blocks(x)))


class Recurrent(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(256, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def mnist_cnn() -> nn.Module:
    """The paper's: two 5×5 convolutions with pooling, dense 1024 cut to 340 for 1.1 M parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 340), nn.ReLU(), nn.Linear(340, 10),
    )  # fmt: skip


def svhn_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10),
    )  # fmt: skip


LARGE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: mlp(800), (1, 28, 28)),
    "CNN": (mnist_cnn, (1, 28, 28)),
    "transformer": (lambda: Transformer(160, 3), ()),
}
SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: mlp(512), (1, 28, 28)),
    "CNN, paper's MNIST": (mnist_cnn, (1, 28, 28)),
    "CNN, SVHN": (svhn_cnn, (3, 32, 32)),
    "transformer": (lambda: Transformer(128, 2), ()),
    "LSTM": (lambda: Recurrent(128), ()),
}


def batch(shape: tuple[int, ...], size: int) -> tuple[Tensor, Tensor]:
    if shape:
        return torch.randn(size, *shape), torch.randint(10, (size,))
    return torch.randint(256, (size, 64)), torch.randint(256, (size, 64))


def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


Attach = Callable[[NoiseTracker], None]


class Loop:
    """One model's training loop, with a tracker or without."""

    def __init__(self, model: nn.Module, pieces: list[tuple[Tensor, Tensor]]):
        self.model, self.pieces = model, pieces
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(self, tracker: NoiseTracker | None) -> None:
        for i, piece in enumerate(self.pieces):
            last = isinstance(self.model, DistributedDataParallel) and i < len(self.pieces) - 1
            with self.model.no_sync() if last else contextlib.nullcontext():  # type: ignore[operator]
                (loss(self.model, *piece) / len(self.pieces)).backward()
            if tracker is not None:
                tracker.micro_batch(len(piece[0]))
        if tracker is not None:
            tracker.step()
        self.optimizer.step()
        self.optimizer.zero_grad()


def turns(
    loops: Callable[[], tuple[Loop, Loop]], attach: Attach, total: Callable[[float], float], every: int | None = None
) -> list[float]:
    """Ratios of CPU times turn by turn, each of as many steps as take 100 ms, of several (plain, measured) `loops`;
    `total` adds a time up over ranks."""
    return [ratio for i in range(MODELS) for ratio in compare(*loops(), attach, total, every, first=i % 2)]


def compare(
    plain: Loop, measured: Loop, attach: Attach, total: Callable[[float], float], every: int | None, first: int
) -> list[float]:
    stays = measured is not plain
    kept = NoiseTracker(measured.model, every=every)
    attach(kept)
    for _ in range(2):
        measured.step(kept)  # after which it has chosen how often to measure
    every = kept.every
    kept.load_state_dict(kept.state_dict() | {"steps": LATER * every})
    if not stays:
        kept.close()

    def seconds(track: bool, steps: int) -> float:
        loop, tracker = (measured, kept) if track else (plain, None)
        if track and not stays:
            tracker = NoiseTracker(loop.model, every=every)
            attach(tracker)
            tracker.load_state_dict(tracker.state_dict() | {"steps": LATER * every})
        for _ in range(every):
            loop.step(tracker)  # sets things up, and checks example hooks
        started = time.process_time()
        for _ in range(steps):
            loop.step(tracker)
        spent = time.process_time() - started
        if tracker is not None and not stays:
            tracker.close()
        return total(spent)

    steps = every * max(1, round(0.1 / seconds(False, 3) * 3 / every))
    ratios = []
    for turn in range(TURNS + 1):
        found = {track: seconds(track, steps) for track in ((False, True) if (turn + first) % 2 else (True, False))}
        ratios.append(found[True] / found[False])
    return ratios[1:]


def accumulation(
    make: Callable[[], nn.Module], shape: tuple[int, ...], kind: str, every: int | None = None
) -> list[float]:
    """Steps of 4 micro-batches of 32, plain or under DDP with leaf hooks or the bucket hook; every n-th is measured."""
    pieces = [batch(shape, MICRO) for _ in range(PARTS)]

    def loop() -> Loop:
        torch.manual_seed(0)
        return Loop(make() if kind == "one process" else DistributedDataParallel(make()), pieces)

    def total(seconds: float) -> float:
        if kind == "one process":
            return seconds
        both = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(both)
        return float(both)

    def loops() -> tuple[Loop, Loop]:
        plain = loop()
        return plain, loop() if kind == "DDP, bucket hook" else plain

    attach = NoiseTracker.use_ddp_hook if kind == "DDP, bucket hook" else lambda tracker: None
    return turns(loops, attach, total, every)


def examples(make: Callable[[], nn.Module], shape: tuple[int, ...], size: int) -> list[float]:
    """A plain step of `size` examples, against the same with the norm of every example."""

    def loops() -> tuple[Loop, Loop]:
        torch.manual_seed(0)
        loop = Loop(make(), [batch(shape, size)])
        return loop, loop

    return turns(loops, NoiseTracker.use_example_hooks, lambda seconds: seconds)


def rank(index: int, folder: str, name: str, kind: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=index, world_size=2)
    ratios = accumulation(*LARGE[name], kind)
    if index == 0:
        report(name, kind, ratios)
    time.sleep(0.5)  # a rank that ends right after a reduction may abort (docs/library.md, "How it fails")
    dist.destroy_process_group()


def report(name: str, kind: str, ratios: list[float]) -> None:
    ranks = sorted(ratios)
    outside = math.floor(len(ranks) / 2 - 0.98 * math.sqrt(len(ranks)))
    interval = f"[{ranks[outside]:.3f}, {ranks[-1 - outside]:.3f}]"
    print(f"{name:<22}{kind:<28}{statistics.median(ranks):>7.3f}   {interval}", flush=True)


def main(asked: list[str]) -> None:
    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(["torch", "noisescale"])
    every = ["accumulation", "ddp", "examples"]
    sections = [section for section in every if section in asked] or every
    print(f"time over the same loop without the tracker, median of {MODELS * TURNS} turns with its 95% interval")
    for name, (make, shape) in LARGE.items():
        if set(asked) - set(sections) and name not in asked:
            continue
        label = f"{name}, {sum(p.numel() for p in make().parameters()) / 1e6:.1f} M"
        if "accumulation" in sections:
            for every in (1, None):
                kind = f"{PARTS} × {MICRO}, {'each step' if every else 'as it comes'}"
                report(label, kind, accumulation(make, shape, "one process", every))
        for kind in ("DDP, leaf hooks", "DDP, bucket hook") if "ddp" in sections else ():
            with tempfile.TemporaryDirectory() as folder:
                mp.start_processes(rank, (folder, name, kind), nprocs=2, start_method="spawn")
    for name, (make, shape) in SMALL.items() if "examples" in sections else ():
        if set(asked) - set(sections) and name not in asked:
            continue
        for size in (32, 128):
            report(name, f"every example of {size}", examples(make, shape, size))


if __name__ == "__main__":
    main(sys.argv[1:])
