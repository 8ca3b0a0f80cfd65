r"""The per-example gradients of `nn.LSTM`, whose fused kernel doesn't show what happens at each time.

With the hidden states known from the output, all gates come from two products over all times at once. What is left of
backpropagation through time is one small product a step for δ_t = dL/d(gate pre-activations), from which
dL/dW_ih = Σ_t δ_t x_tᵀ, dL/dW_hh = Σ_t δ_t h_{t−1}ᵀ and dL/db = Σ_t δ_t.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from noisescale.per_example.parameter_uses import Outer, Use, Whole


class Record(NamedTuple):
    """What a call of the layer took and gave: x, (h₀, c₀) or None, the output sequence, and dL/d(output, h_n, c_n)."""

    x: Tensor
    start: tuple[Tensor, Tensor] | None
    output: Tensor
    gradients: list[Tensor | None]


def refusal(layer: nn.LSTM) -> str:
    """Why this layer can't be followed, or ''."""
    if layer.proj_size:
        return "proj_size"
    return "dropout between its layers" if layer.dropout and layer.num_layers > 1 else ""


@torch.no_grad()
def lstm(layer: nn.LSTM, record: Record) -> dict[str, Use]:
    """Uses by parameter name, all layers and directions."""
    dtype = layer.weight_ih_l0.dtype  # autocast hands out less

    def first(t: Tensor) -> Tensor:
        return (t.transpose(0, 1) if layer.batch_first else t).to(dtype)

    directions = 2 if layer.bidirectional else 1
    size = layer.hidden_size
    x, output = first(record.x), first(record.output)
    d_output = torch.zeros_like(output) if record.gradients[0] is None else first(record.gradients[0])
    zeros = x.new_zeros(layer.num_layers * directions, x.shape[1], size)
    h0, c0 = (zeros, zeros) if record.start is None else (t.to(dtype) for t in record.start)
    d_h, d_c = (zeros if g is None else g.to(dtype) for g in record.gradients[1:])

    inputs, outputs = [x], []
    for level in range(layer.num_layers - 1):
        weights = [p for d in range(directions) for p in _weights(layer, level, d)]
        slot = slice(level * directions, (level + 1) * directions)
        outputs.append(
            torch.lstm(
                inputs[-1], (h0[slot], c0[slot]), weights, layer.bias, 1, 0.0, False, layer.bidirectional, False
            )[0]
        )
        inputs.append(outputs[-1])
    outputs.append(output)

    uses: dict[str, Use] = {}
    for level in reversed(range(layer.num_layers)):
        d_input = torch.zeros_like(inputs[level]) if level else None
        for direction in range(directions):
            slot, half = level * directions + direction, slice(direction * size, (direction + 1) * size)
            flip = (lambda t: t.flip(0)) if direction else (lambda t: t)
            weights = _weights(layer, level, direction)
            hidden = flip(outputs[level][..., half])
            before = torch.cat([h0[slot][None], hidden[:-1]])
            seen = flip(inputs[level])
            delta = _deltas(weights, seen, before, c0[slot], flip(d_output[..., half]), d_h[slot], d_c[slot])
            if d_input is not None:
                d_input += flip(delta @ weights[0])
            d, v, h = (t.transpose(0, 1) for t in (delta, seen, before))
            few = len(delta) * (5 * size + v.shape[2]) < 4 * size * (size + v.shape[2])
            gram = d @ d.transpose(1, 2) if few else None
            suffix = f"_l{level}" + ("_reverse" if direction else "")
            uses[f"weight_ih{suffix}"], uses[f"weight_hh{suffix}"] = Outer(d, v, gram), Outer(d, h, gram)
            if layer.bias:
                uses[f"bias_ih{suffix}"] = uses[f"bias_hh{suffix}"] = Whole(d.sum(1))
        if d_input is not None:
            d_output = d_input
    return uses


def _weights(layer: nn.LSTM, level: int, direction: int) -> list[Tensor]:
    suffix = f"_l{level}" + ("_reverse" if direction else "")
    kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layer.bias else ()))
    return [getattr(layer, kind + suffix) for kind in kinds]


def _deltas(
    weights: list[Tensor], x: Tensor, before: Tensor, c0: Tensor, d_output: Tensor, d_h: Tensor, d_c: Tensor
) -> Tensor:
    """δ of all times, (T, B, 4H): inputs, previous hidden states and the outputs' gradients, all time first."""
    to_gates, recurrent = weights[0], weights[1]
    bias = weights[2] + weights[3] if len(weights) > 2 else None
    gates = torch.nn.functional.linear(x, to_gates, bias)
    gates.flatten(0, 1).addmm_(before.flatten(0, 1), recurrent.T)
    i, f, g, o = gates.unflatten(-1, (4, -1)).unbind(-2)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cells, forget = [c0], f.unbind()
    for new, keep in zip((i * g).unbind(), forget, strict=True):
        cells.append(torch.addcmul(new, keep, cells[-1]))
    cell = torch.stack(cells)
    squashed = cell[1:].tanh()
    to_cell = (o * (1 - squashed**2)).unbind()
    of_cell = torch.stack([g * i * (1 - i), cell[:-1] * f * (1 - f), i * (1 - g**2)], dim=2).unbind()
    of_output = (squashed * o * (1 - o)).unbind()
    delta = gates.unflatten(-1, (4, -1))
    write_cell, write_output, rows = delta[:, :, :3].unbind(), delta[:, :, 3].unbind(), gates.unbind()
    given = d_output.unbind()
    d_h = d_h + given[-1]
    for t in reversed(range(len(x))):
        d_c = torch.addcmul(d_c, d_h, to_cell[t])
        torch.mul(of_cell[t], d_c[:, None], out=write_cell[t])
        torch.mul(of_output[t], d_h, out=write_output[t])
        if t:
            d_h = torch.addmm(given[t - 1], rows[t], recurrent)
            d_c.mul_(forget[t])
    return gates
