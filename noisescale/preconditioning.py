r"""Gradients in the metric of an adaptive optimizer: each coordinate divided by (√v̂ + ε)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

PRECONDITIONED = "preconditioned"


def inverse_roots(optimizer: torch.optim.Optimizer) -> dict[int, Tensor]:
    r"""id(parameter) → 1 / (√v̂ + ε) from the optimizer's state as it stands, before the coming step.

    v is Adam's `exp_avg_sq` (or `max_exp_avg_sq` with AMSGrad), corrected for its start as Adam does, or RMSProp's
    `square_avg` (less `grad_avg`² where it is centered). A parameter without a state yet maps to NaN, so that a step
    that needs it is dropped.

    Raises:
        ValueError: the optimizer is neither Adam-like nor RMSProp, or keeps no second moment.
    """
    found: dict[int, Tensor] = {}
    for group in optimizer.param_groups:
        known = "betas" in group or "centered" in group  # Adadelta has a `square_avg` too, and divides otherwise
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            v = state.get("max_exp_avg_sq", state.get("exp_avg_sq", state.get("square_avg")))
            if not known or (v is None and state):
                raise ValueError(
                    f"{type(optimizer).__name__} keeps no second moment that its step is divided by the root of "
                    f"(its state: {', '.join(map(str, state)) or 'none'}): precondition needs an Adam-like optimizer "
                    "or RMSprop"
                )
            if v is None:
                found[id(p)] = torch.full((), math.nan, device=p.device)
                continue
            if group.get("centered"):
                v = v - state["grad_avg"] ** 2
            if "square_avg" not in state:
                step = state["step"]  # a plain number in SparseAdam and in many an Adam of other packages
                on_device = isinstance(step, Tensor) and step.device == v.device
                v = v / (1 - group["betas"][1] ** (step.double() if on_device else float(step)))
            found[id(p)] = 1 / (v.sqrt() + group["eps"])
    return found
