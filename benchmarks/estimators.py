"""B_simple of one frozen network by this library and its peers, at equal examples: `python benchmarks/estimators.py`.

With `cost` or `errors` behind it, only that half: a minute, and a quarter of an hour that a busy machine doesn't spoil.

A CNN of 16 and 32 channels, trained for a moment on 1,500 of scikit-learn's real digits and then frozen; B_simple is
exact, from every example in float64. Each way sees the same 6,400 examples a seed, drawn with replacement in batches of
16, 64 and 256. Printed for each: the root mean square error relative to the exact value over the seeds, how many of its
95% intervals hold it, CPU milliseconds a step at B = 64 over a plain step and over plain accumulation in 4 (the ways
take turns), and the memory that the first step adds to the process's peak, beyond what plain training adds.

gns-pytorch takes one backward pass an example and gets 4 seeds. The peers come with the extra `peers`; one that doesn't
import is named and left out. Where a peer gives norms and no estimate, its norms go into the unbiased formula and a
ratio of means, the best that can be made of them.
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
from types import SimpleNamespace
from typing import Any

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
    seeds = SEEDS

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
    seeds = 4

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


class AdaptDL(Way):
    name = "AdaptDL: accumulation in 4"

    def __init__(self, model: nn.Sequential, size: int):
        from adaptdl.torch.gradient_noise_scale import GradientNoiseScale

        super().__init__(model, size)
        self.sync = SimpleNamespace(require_backward_grad_sync=False)  # as their DDP says it to their estimator
        self.scale = GradientNoiseScale(self.sync, self.optimizer, num_replicas=1)

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.scale.reset_accumulation()
        for i, piece in enumerate(zip(*(t.split(self.size // 4) for t in batch), strict=True)):
            self.sync.require_backward_grad_sync = i == 3
            loss(self.model, piece).backward()
        self.update()

    def result(self) -> tuple[float, float, float]:
        return self.scale.var_avg() / self.scale.sqr_avg() * self.size / 4, math.nan, math.nan


WAYS = (Plain, PlainAccumulation, ExampleHooks, Vmap, Accumulation, Opacus, BackPACK, AdaScale, AdaptDL, GnsPytorch)


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
        for seed in range(way.seeds):
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


def measure(half: str, name: str) -> None:
    """One way in a process of its own; its numbers as one line of JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images, labels = digits()
    model, truth = frozen(images, labels)
    way = next(way for way in WAYS if way.name == name)
    try:
        result = cost(way, model, images, labels) if half == "cost" else errors(way, model, truth, images, labels)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    print(json.dumps(result | {"truth": truth}))


def rows(half: str, head: str, line: Callable[[dict[str, Any]], str]) -> None:
    """A table of one half, a process and a line for each way."""
    print(head, flush=True)
    for way in WAYS:
        if half == "errors" and way in (Plain, PlainAccumulation):
            continue
        child = subprocess.run([sys.executable, __file__, half, way.name], capture_output=True, text=True)
        if child.returncode:
            print(f"{way.name:<40}failed: {child.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads(child.stdout.strip().splitlines()[-1])
        said = f"not installed ({found['missing']})" if "missing" in found else line(found)
        print(f"{way.name:<40}{said}", flush=True)


def main(halves: list[str]) -> None:
    if "cost" in halves:
        base: list[float] = []

        def costs(found: dict[str, Any]) -> str:
            base.append(found["mb"])  # the first way is plain training
            return (
                f"{found['ms']:>7.2f}{found['ms'] / found['plain']:>13.2f}{found['ms'] / found['accumulation']:>19.2f}"
                f"{found['mb'] - base[0]:>10.1f}"
            )

        rows("cost", f"{'B = 64':<40}{'ms':>7}{'over plain':>13}{'over accumulation':>19}{'more MB':>10}", costs)
    if "errors" in halves:

        def rmse(found: dict[str, Any]) -> str:
            held = "–" if math.isnan(found["held"][0]) else f"{found['held'][0]:.0%}"
            return "".join(f"{x:>9.1%}" for x in found["rmse"]) + f"{held:>7}{found['truth']:>9.1f}"

        head = "".join(f"{f'B = {size}':>9}" for size in SIZES)
        rows("errors", f"{f'RMSE, {EXAMPLES} examples, {SEEDS} seeds':<40}{head}{'held':>7}{'exact':>9}", rmse)


if __name__ == "__main__":
    measure(*sys.argv[1:]) if len(sys.argv) == 3 else main(sys.argv[1:] or ["cost", "errors"])
