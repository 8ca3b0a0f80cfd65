from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError
from sklearn.datasets import load_digits

from experiments.data.sampling import draw
from experiments.errors import UserError
from experiments.tasks.digits import DigitsConfig, DigitsTask

CPU = torch.device("cpu")


def task(seed: int = 0, **fields) -> DigitsTask:
    return DigitsTask(DigitsConfig(name="digits", **fields), seed, CPU)


def train(task: DigitsTask, steps: int, batch_size: int = 64, lr: float = 0.2) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        loss = task.loss(task.batch(batch_size, generator))
        gradients = torch.autograd.grad(loss, list(task.model.parameters()))
        with torch.no_grad():
            for p, g in zip(task.model.parameters(), gradients, strict=True):
                p -= lr * g
        losses.append(loss.item())
    return losses


def test_yaml_lists_every_field_with_its_default():
    fields = yaml.safe_load(Path("configs/task/digits.yaml").read_text())
    assert DigitsConfig(**fields) == DigitsConfig(name="digits")
    assert list(fields) == ["name", "channels", "replacement"]


@pytest.mark.parametrize("bad", [{"channels": (0, 32)}, {"channels": (16,)}, {"width": 3}, {"replacement": "perhaps"}])
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        DigitsConfig(name="digits", **bad)


def test_batches_are_real_images_with_their_labels():
    pixels, labels = load_digits(return_X_y=True)
    lookup = {tuple(row): label for row, label in zip(pixels[:1500], labels[:1500], strict=True)}
    images, drawn = task().batch(50, torch.Generator().manual_seed(3))
    assert images.shape == (50, 1, 8, 8)
    for image, label in zip((images.flatten(1) + 1) * 8, drawn, strict=True):
        assert lookup[tuple(image.tolist())] == label


def test_draw_with_and_without_replacement():
    generator = torch.Generator().manual_seed(0)
    assert draw(1500, 1500, generator, replacement=False).sort().values.equal(torch.arange(1500))
    counts = torch.bincount(draw(10, 20_000, generator, replacement=True), minlength=10)
    assert (counts - 2000).abs().max() < 5 * 2000**0.5
    distinct = draw(1500, 1500, generator, replacement=True).unique().numel() / 1500
    assert abs(distinct - (1 - 1 / torch.e)) < 0.05
    with pytest.raises(UserError, match=r"1501 .* 1500 .*task\.replacement=true"):
        task(replacement=False).batch(1501, generator)


def test_evaluation_is_the_loss_and_error_over_the_1500():
    it = task()
    logits = it.model(it.images)
    loss, error = it.evaluate()
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, it.labels).item(), rel=1e-5)
    assert error == (logits.argmax(1) != it.labels).double().mean().item()


def test_weights_depend_on_the_seed_alone_and_global_state_is_untouched():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    a, b, other = task(1), task(1), task(2)
    a.evaluate()
    a.batch(8, torch.Generator().manual_seed(0))
    assert torch.get_rng_state().equal(state)
    assert all(p.equal(q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))
    assert not any(p.equal(q) for p, q in zip(a.model.parameters(), other.model.parameters(), strict=True))


def test_learns_and_reruns_bit_for_bit():
    one, two = task(), task()
    assert train(one, 150) == train(two, 150)
    assert one.evaluate() == two.evaluate()
    assert one.evaluate().metric < 0.1
