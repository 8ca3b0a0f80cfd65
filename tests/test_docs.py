"""Every Python block in the README and in docs/library.md runs, and where it measures, it measures something."""

import functools
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from noisescale import NoiseTracker

torch.manual_seed(0)
device = "cpu"
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
inputs = torch.randn(640, 6)
labels = inputs[:, :1].sin() + 0.5 * torch.randn(640, 1)

def loss(model, batch):
    inputs, labels = batch
    return (model(inputs).float() - labels).square().mean()

def batches_of(size):
    return list(zip(inputs.split(size), labels.split(size)))

def tracker_with_steps():
    tracker = NoiseTracker(model, window=200)
    for batch in batches_of(64):
        tracker.backward(loss, batch, parts=8)
        tracker.step()
        optimizer.zero_grad()
    return tracker

batches = batches_of(16)
"""
RANKS = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

batches = batches[dist.get_rank() :: dist.get_world_size()]
"""
# What a section's blocks take for granted beside SETUP.
ALSO = {
    "In your own training loop": """
loader = inputs.split(64)
loss = lambda output: output.square().mean()
""",
    "DDP": RANKS,
    "DDP's communication hook": RANKS
    + """
from torch.nn.parallel import DistributedDataParallel
""",
    "fully_shard and HSDP": RANKS + 'mesh = init_device_mesh("cpu", (dist.get_world_size(),))',
    "Hugging Face Trainer": """
from transformers import TrainingArguments

class Model(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, labels):
        return {"loss": (self.network(x) - labels).square().mean()}

model = Model(model)
dataset = [{"x": x, "labels": y} for x, y in zip(inputs, labels)]
arguments = TrainingArguments(
    output_dir=folder, max_steps=5, per_device_train_batch_size=8, gradient_accumulation_steps=4, logging_steps=1,
    use_cpu=True, report_to=[], disable_tqdm=True,
)
""",
    "Lightning": """
from lightning.pytorch import LightningModule

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = model

    def training_step(self, batch, index):
        return loss(self.network, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)

module = Module()
batches = DataLoader(TensorDataset(inputs, labels), 16)
options = dict(
    accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False,
)
""",
    "Accelerate": "batches = DataLoader(TensorDataset(inputs, labels), 16)",
    "Logging": """
import wandb

class Board(list):
    def add_scalar(self, name, value, step):
        self.append((name, value, step))

tracker = NoiseTracker(model, window=200)
wandb_run, tensorboard = wandb.init(mode="disabled"), Board()
""",
    "Checkpoints": "tracker = tracker_with_steps()\npath = folder + '/checkpoint.pt'",
    "Which batch size": "tracker = tracker_with_steps()",
    "A batch size that follows it": """
from itertools import cycle

tracker = NoiseTracker(model, window=20)
micro_batches_of_16 = cycle(batches)
""",
    "Without a tracker": """
def norms():
    for inputs, labels in batches_of(64):
        parts = zip(inputs.split(16), labels.split(16))
        found = [torch.autograd.grad(loss(model, part), list(model.parameters())) for part in parts]
        rows = torch.stack([torch.cat([g.flatten() for g in of_part]) for of_part in found])
        yield rows.square().sum(1), rows.mean(0).square().sum()

steps_of_a_loop_of_your_own = norms()
""",
}
NEEDS = {
    "Hugging Face Trainer": "transformers",
    "Lightning": "lightning",
    "Accelerate": "accelerate",
    "Logging": "wandb",
}
ON_RANKS = {heading for heading, text in ALSO.items() if RANKS in text}
SLOW = {"torch.compile", *NEEDS}
MEASURED = """
if "tracker" in globals():
    assert tracker.estimate().steps > 0 and not tracker.skipped, (tracker.estimate(), tracker.skipped)
"""
AFTERWARDS = {
    "Hugging Face Trainer": """
assert any(row.get("noise_scale/trace_cov", 0) > 0 for row in trainer.state.log_history)
""",
    "Lightning": """
assert any(getattr(c, "tracker", None) and c.tracker.estimate().trace_cov > 0 for c in trainer.callbacks)
""",
    "Layers and groups": "assert set(tracker.estimates()) == {'total', 'body', 'head'}",
    "In Adam's metric": "assert tracker.estimates()['preconditioned'].trace_cov > 0",
    "Logging": "assert 'noise_scale/b_simple' in {name for name, _, _ in tensorboard}",
    "A batch size that follows it": "assert schedule.batch_size != schedule.start",
    "B_crit of a sweep": "assert fit.determined",
}


def sections(file: str) -> dict[str, str]:
    """Heading → its Python blocks, one after the other."""
    found: dict[str, str] = {}
    for part in re.split(r"^##+ ", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```python\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            found[part.partition("\n")[0]] = "\n".join(blocks)
    return found


SECTIONS = {**sections("README.md"), **sections("docs/library.md")}


def test_the_set_ups_belong_to_sections_that_are_there():
    assert set(ALSO) | set(AFTERWARDS) | SLOW <= set(SECTIONS)
    assert len(SECTIONS) > 15


@pytest.mark.parametrize(
    "heading",
    [pytest.param(h, marks=pytest.mark.slow if h in SLOW else ()) for h in SECTIONS if h not in ON_RANKS],
)
def test_a_section_runs(heading, tmp_path, monkeypatch):
    if heading in NEEDS:
        pytest.importorskip(NEEDS[heading])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))  # needs no compiler
    names = {"folder": str(tmp_path), "__name__": "docs"}
    with warnings.catch_warnings():
        if heading in NEEDS:
            warnings.simplefilter("ignore")
        for text in (SETUP, ALSO.get(heading, ""), SECTIONS[heading], MEASURED, AFTERWARDS.get(heading, "")):
            exec(compile(text, heading, "exec"), names)


@pytest.mark.slow
def test_sections_run_on_two_ranks(tmp_path):
    texts = ["\n".join([SETUP, ALSO[heading], SECTIONS[heading], MEASURED]) for heading in sorted(ON_RANKS)]
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        f"for text in {texts!r}:\n"
        "    exec(text, {})\n"
        "dist.destroy_process_group()\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
