"""TensorFlow's RMSProp against its formula, number by number."""

import math

import pytest
import torch

from experiments.config import OptimizerConfig
from experiments.training.loop import make_optimizer

LR, ALPHA, EPS = 0.1, 0.9, 0.04


def test_steps_are_those_of_the_formula_from_a_mean_square_of_one():
    vector = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = make_optimizer(OptimizerConfig("rmsprop_tf", alpha=ALPHA, eps=EPS), vector, LR, 1)
    theta, v = vector.tolist(), [1.0, 1.0]
    for gradient in ([3.0, 0.0], [-0.5, 1e-3], [0.25, 2.0]):
        vector.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        v = [ALPHA * a + (1 - ALPHA) * g * g for a, g in zip(v, gradient, strict=True)]
        theta = [t - LR * g / math.sqrt(a + EPS) for t, a, g in zip(theta, v, gradient, strict=True)]
        assert vector.tolist() == pytest.approx(theta, rel=1e-12)


def test_its_state_is_saved_and_goes_on():
    def steps(optimizer, vector, count):
        for _ in range(count):
            vector.grad = vector.detach() * 2
            optimizer.step()

    config = OptimizerConfig("rmsprop_tf", alpha=ALPHA, eps=EPS)
    straight, cut, resumed = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(3))
    steps(make_optimizer(config, straight, LR, 1), straight, 7)
    first = make_optimizer(config, cut, LR, 1)
    steps(first, cut, 4)
    second = make_optimizer(config, resumed, LR, 1)
    second.load_state_dict(first.state_dict())
    resumed.data.copy_(cut.data)
    steps(second, resumed, 3)
    assert torch.equal(straight, resumed)
