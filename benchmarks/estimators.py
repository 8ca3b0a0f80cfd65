"""B_simple of one frozen network by this library and its peers, at equal examples: `python benchmarks/estimators.py`.

A CNN of 16 and 32 channels, trained for a moment on 1,500 of scikit-learn's real digits and then frozen; B_simple is
exact, from every example in float64. Each way sees the same 6,400 examples a seed, drawn with replacement in batches of
16, 64 and 256. Printed for each: the root mean square error relative to the exact value over the seeds, how many of its
95% intervals hold it, CPU milliseconds a step at B = 64 over a plain step and over plain accumulation in 4 (the ways
take turns), and the memory that the first step adds to the process's peak, beyond what plain training adds.

The peers come with the extra `peers`; one that doesn't import is named and left out. Where a peer gives norms and no
estimate, its norms go into the unbiased formula and a ratio of means, the best that can be made of them.
"""

import json
import math
import random
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from noisescale import MomentAverage, NoiseTracker, gradient_moments, per_example_sq_norms

EXAMPLES = 6400
SIZES = (16, 64, 256)
SEEDS = 20
TURNS = 25


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[:1500] / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels[:1500])


def frozen(images: Tensor, labels: Tensor) -> tuple[nn.Sequential, float]:
    """The network after 150 steps, and its exact B_simple on the 1,500 images."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(150):
        picked = torch.randint(len(images), (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[picked]), labels[picked]).backward()
        optimizer.step()
    precise = network().double()
    precise.load_state_dict(model.state_dict())
    found = per_example_sq_norms(precise, loss, (images.double(), labels), 100)
    grad_sq_norm = torch.stack(list(found.mean_sq_norm.values())).sum()
    second = torch.stack(list(found.sq_norms.values())).sum(0).mean()
    return model, float((second - grad_sq_norm) / grad_sq_norm)


def loss(model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Way:
    """One way to measure: `step` is a whole training step with learning rate 0, `result` (estimate, low, high)."""

    name = ""

    def __init__(self, model: nn.Sequential, size: int):
        self.model, self.size = model, size
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        loss(self.model, batch).backward()
        self.update()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def result(self) -> tuple[float, float, float]:
        return math.nan, math.nan, math.nan


class Plain(Way):
    name = "plain"


class PlainAccumulation(Way):
    name = "plain accumulation"

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        for piece in zip(*(t.split(self.size // 4) for t in batch), strict=True):
            (loss(self.model, piece) / 4).backward()
        self.update()


class Tracked(Way):
    def __init__(self, model: nn.Sequential, size: int):
        super().__init__(model, size)
        self.tracker = NoiseTracker(model, window=EXAMPLES)

    def result(self) -> tuple[float, float, float]:
        scale = self.tracker.estimate()
        return scale.b_simple, scale.low, scale.high


class Accumulation(Tracked):
    name = "noisescale: accumulation in 4"

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        for piece in zip(*(t.split(self.size // 4) for t in batch), strict=True):
            (loss(self.model, piece) / 4).backward()
            self.tracker.micro_batch(len(piece[0]))
        self.tracker.step()
        self.update()


class ExampleHooks(Tracked):
    name = "noisescale: example hooks"

    def __init__(self, model: nn.Sequential, size: int):
        super().__init__(model, size)
        self.tracker.use_example_hooks()

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        loss(self.model, batch).backward()
        self.tracker.micro_batch(len(batch[0]))
        self.tracker.step()
        self.update()


class Vmap(Tracked):
    name = "noisescale: vmap, beside"

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.tracker.per_example(loss, batch, chunk=64)
        super().step(batch)


class Norms(Way):
    """A peer that gives per-example norms: the unbiased formula and a ratio of means make the estimate."""

    def __init__(self, model: nn.Sequential, size: int):
        super().__init__(model, size)
        self.average = MomentAverage(window=EXAMPLES)

    def add(self, sq_norms: Tensor) -> None:
        mean = sum((p.grad**2).sum() for p in self.model.parameters() if p.grad is not None)
        self.average.update(*gradient_moments(sq_norms, [1] * self.size, mean), self.size)

    def result(self) -> tuple[float, float, float]:
        return self.average.estimate().b_simple, math.nan, math.nan


class Opacus(Norms):
    name = "Opacus: ghost norms"

    def __init__(self, model: nn.Sequential, size: int):
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        super().__init__(model, size)
        self.wrapped = GradSampleModuleFastGradientClipping(model, use_ghost_clipping=True)

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        loss(self.wrapped, batch).backward()
        self.add(self.wrapped.get_norm_sample() ** 2)
        self.update()


class BackPACK(Norms):
    name = "BackPACK: BatchL2Grad"

    def __init__(self, model: nn.Sequential, size: int):
        from backpack import extend

        super().__init__(model, size)
        self.extended, self.criterion = extend(model), extend(nn.CrossEntropyLoss())

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        from backpack import backpack
        from backpack.extensions import BatchL2Grad

        with backpack(BatchL2Grad()):
            self.criterion(self.extended(batch[0]), batch[1]).backward()
        norms = torch.stack([p.batch_l2 for p in self.model.parameters()]).sum(0)
        self.add(norms * self.size**2)
        self.update()


class GnsPytorch(Way):
    name = "gns-pytorch: as in its readme"

    def __init__(self, model: nn.Sequential, size: int):
        import gns_pytorch

        super().__init__(model, size)
        self.compute, self.values = gns_pytorch.compute_gns, []

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        each = F.cross_entropy(self.model(batch[0]), batch[1], reduction="none")
        self.values.append(self.compute(each, self.model))
        each.mean().backward()
        self.update()

    def result(self) -> tuple[float, float, float]:
        return statistics.fmean(self.values), math.nan, math.nan


class AdaScale(Way):
    name = "fairscale: AdaScale, accumulation in 4"

    def __init__(self, model: nn.Sequential, size: int):
        from fairscale.optim import AdaScale as Wrapped

        super().__init__(model, size)
        self.optimizer = Wrapped(torch.optim.SGD(model.parameters(), lr=0.0), num_gradients_to_accumulate=4)

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        for piece in zip(*(t.split(self.size // 4) for t in batch), strict=True):
            (loss(self.model, piece) / 4).backward()
        self.update()

    def result(self) -> tuple[float, float, float]:
        variance, square = self.optimizer._grad_var_avg(), self.optimizer._grad_sqr_avg()
        return variance / square * self.size / 4, math.nan, math.nan


WAYS = (Plain, PlainAccumulation, ExampleHooks, Vmap, Accumulation, Opacus, BackPACK, GnsPytorch, AdaScale)


def copy_of(model: nn.Sequential) -> nn.Sequential:
    copy = network()
    copy.load_state_dict(model.state_dict())
    return copy


def errors(
    way: type[Way], model: nn.Sequential, truth: float, images: Tensor, labels: Tensor
) -> dict[str, list[float]]:
    """RMSE relative to the truth by batch size, and the share of all intervals that hold it."""
    found: dict[str, list[float]] = {"rmse": []}
    held = []
    for size in SIZES:
        off = []
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(seed)
            random.seed(seed)
            run = way(copy_of(model), size)
            for _ in range(EXAMPLES // size):
                picked = torch.randint(len(images), (size,), generator=generator)
                run.step((images[picked], labels[picked]))
            value, low, high = run.result()
            off.append(value / truth - 1)
            held.append(math.nan if math.isnan(low) else float(low <= truth <= high))
        found["rmse"].append(statistics.fmean(x * x for x in off) ** 0.5)
    found["held"] = [statistics.fmean(held)]
    return found


def cost(way: type[Way], model: nn.Sequential, images: Tensor, labels: Tensor) -> dict[str, float]:
    """CPU milliseconds a step of three ways that take turns, at B = 64; peak memory of the process in MB."""
    batch = images[:64], labels[:64]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runs = [kind(copy_of(model), 64) for kind in (way, Plain, PlainAccumulation)]
    runs[0].step(batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times: list[list[float]] = [[], [], []]
    for _ in range(TURNS):
        for run, seconds in zip(runs, times, strict=True):
            started = time.process_time()
            for _ in range(4):
                run.step(batch)
            seconds.append((time.process_time() - started) / 4)
    own, plain, accumulation = (1e3 * statistics.median(t) for t in times)
    return {"ms": own, "plain": plain, "accumulation": accumulation, "mb": (peak - before) / 1024}


def measure(name: str) -> None:
    """One way in a process of its own; its numbers as one line of JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images, labels = digits()
    model, truth = frozen(images, labels)
    way = next(way for way in WAYS if way.name == name)
    try:
        result = cost(way, model, images, labels)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    if way not in (Plain, PlainAccumulation):
        result |= errors(way, model, truth, images, labels)
    print(json.dumps(result | {"truth": truth}))


def main() -> None:
    head = [f"RMSE B={size}" for size in SIZES]
    print(f"{'':<40}{head[0]:>11}{head[1]:>11}{head[2]:>12}   held   ms   over plain   over accumulation   more MB")
    base = 0.0
    for way in WAYS:
        child = subprocess.run([sys.executable, __file__, way.name], capture_output=True, text=True)
        if child.returncode:
            print(f"{way.name:<40}failed: {child.stderr.strip().splitlines()[-1]}")
            continue
        found = json.loads(child.stdout.strip().splitlines()[-1])
        if "missing" in found:
            print(f"{way.name:<40}not installed ({found['missing']})")
            continue
        if way is Plain:
            base = found["mb"]
            print(f"exact B_simple {found['truth']:.1f}, {EXAMPLES} examples a seed, {SEEDS} seeds")
        rmse = "".join(f"{x:>11.1%}" for x in found.get("rmse", [])) or " " * 33
        held = found.get("held", [math.nan])[0]
        print(
            f"{way.name:<40}{rmse}{'–' if math.isnan(held) else f'{held:.0%}':>8}{found['ms']:>7.2f}"
            f"{found['ms'] / found['plain']:>10.2f}×{found['ms'] / found['accumulation']:>15.2f}×"
            f"{found['mb'] - base:>15.1f}",
            flush=True,
        )


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
