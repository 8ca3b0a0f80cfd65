r"""Per-example norms from the training pass itself: hooks keep each layer's input and its output's gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisescale.gradient_norms import HALF, unrounded
from noisescale.per_example.batch_dimension import layer_input, rows_that_stay, shared
from noisescale.per_example.coupled_layers import batch_norms, refuse_coupled
from noisescale.per_example.layer_rules import RULES
from noisescale.per_example.parameter_uses import Use, examples, norm
from noisescale.per_example.recurrent import Record, lstm, refusal
from noisescale.side_effects import beside


class GhostNorms:
    r"""Norms of the examples' gradients, as they enter the batch's: √(Σ_i |∇(loss_i / B)|²) for a mean over B.

    Knows Linear, Conv1d, Conv2d, Embedding, LayerNorm, RMSNorm, GroupNorm and LSTM; tied weights and layers that are
    called twice are summed before the norm. In the first step each parameter's examples are added up and compared with
    the gradient that training got, so that a weight used behind its layer's back is found and not measured wrongly; and
    the model is tried out beside it (`trial`), so that rows which aren't examples are.

    A copy of the model, by pickle or deepcopy, comes without measuring.

    Args:
        model: examples come first in every layer's input.
        canonical: any name of a parameter → the one it is measured under.
        begin: called when a backward pass begins, before it adds to any gradient.

    Raises:
        ValueError: layers it doesn't know, or BatchNorm that takes the batch's statistics, by name.
    """

    def __init__(self, model: nn.Module, canonical: Mapping[str, str], begin: Callable[[], None]) -> None:
        self._names: dict[nn.Module, dict[str, str]] = {}
        self._layers: dict[nn.Module, str] = {}
        unknown = []
        for prefix, module in model.named_modules():
            owned = [n for n, p in module.named_parameters(recurse=False) if p.requires_grad]
            if not owned:
                continue
            kind = type(module).__name__
            if isinstance(module, nn.LSTM):
                reason = refusal(module)
                if reason:
                    unknown.append(f"{prefix} ({kind} with {reason})")
            elif isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
                unknown.append(f"{prefix} ({kind} with scale_grad_by_freq, which couples examples)")
            elif type(module) not in RULES or set(owned) - {"weight", "bias"}:
                unknown.append(f"{prefix or 'the model itself'} ({kind}: {', '.join(owned)})")
            self._layers[module] = prefix or kind
            self._names[module] = {n: canonical[f"{prefix}.{n}".lstrip(".")] for n in owned}
        if unknown:
            raise ValueError(
                f"no rule for the per-example gradients of {'; '.join(unknown)}: "
                "measure with per_example(), which takes any layer, or compare micro-batches"
            )
        self._batch_norms = batch_norms(model)
        refuse_coupled(self._batch_norms)
        self.on = True
        self._begin, self._begun = begin, False
        self.batch = 0
        self.twice = False  # whether two backward passes reached a parameter since the last `take`
        self._calls: Counter[str] = Counter()
        self._passes: dict[str, int] = {}
        self._norms: dict[str, Tensor] = {}
        self._rows: list[tuple[str, int]] = []
        self._uses: dict[str, list[Use]] = {}
        self._records: list[tuple[nn.LSTM, Record]] = []
        self._checked = False
        self._doubts: dict[int, str] = {}  # batch that the model was tried out with → what was wrong, or ''
        self._shared: set[nn.Module] = set()
        self._seen: dict[str, Tensor] = {}
        self.handles = [model.register_forward_pre_hook(self._start, with_kwargs=True, prepend=True)]
        for module in self._names:
            see = self._see_lstm if isinstance(module, nn.LSTM) else self._see
            self.handles.append(module.register_forward_hook(see, with_kwargs=True))
        self._comparing = [
            p.register_hook(lambda g, known=canonical[name]: self._compare(known, g))
            for name, p in model.named_parameters()
            if p.requires_grad
        ]
        self.handles += self._comparing

    def __getstate__(self) -> dict[str, Any]:
        return {"on": False}

    @torch.no_grad()
    def take(self, batch: float) -> dict[str, Tensor]:
        """name → √(Σ over the `batch` examples of the square), and forget. Raises ValueError where a layer's input
        didn't have the examples first."""
        for module, record in self._records:
            if all(g is None for g in record.gradients):
                continue  # a forward pass that no backward pass followed
            for local, use in lstm(module, record).items():
                if local in self._names[module]:
                    self._keep(self._names[module][local], use)
        uses, norms, rows, seen = self._uses, self._norms, self._rows, self._seen
        self._uses, self._norms, self._rows, self._seen, self._records = {}, {}, [], {}, []
        self._calls.clear()
        self._passes.clear()
        self._begun = False
        for name, count in rows:
            if count != batch:
                why = (
                    "ids (1, …) that the examples share may only be broadcast over them"
                    if count == 1
                    else "examples must come first, and micro_batch() takes their number, not that of tokens"
                )
                raise ValueError(f"{name}: its layer saw {count} rows for {batch:g} examples; {why}")
        norms |= {name: norm(found) for name, found in uses.items()}
        if not self._checked:
            doubt = self._doubts.get(batch, "")
            if norms and batch > 1 and not self._doubts:
                doubt = (
                    "can't tell whether the examples come first in every layer's input: that is tried out where the "
                    "model itself is called, model(…), and only layers or methods of it were; give the tracker the "
                    "module that is called"
                )
            if doubt:
                raise ValueError(f"{doubt}, measure with per_example(), or compare micro-batches")
            self._check(seen, uses, batch)
        return norms

    def _check(self, seen: dict[str, Tensor], uses: dict[str, list[Use]], batch: float) -> None:
        """Again at the next step where gradients aren't finite, and where there is one example only."""
        if not seen:
            return
        whole = torch.stack([torch.linalg.vector_norm(g) for g in seen.values()]).norm()
        if not bool(torch.isfinite(whole)):
            return
        for name, gradient in seen.items():
            total = sum((use.total().flatten() for use in uses.get(name, [])), torch.zeros_like(gradient).flatten())
            difference, size = torch.linalg.vector_norm(total - gradient.flatten()), torch.linalg.vector_norm(gradient)
            if not bool(difference <= 0.02 * size + 1e-4 * whole):  # some gradients are nothing but rounding
                raise ValueError(
                    f"{name}: the examples' gradients don't add up to the batch's: it is used outside its layer's "
                    "forward, or its layer's input doesn't have the examples first"
                )
        self._checked = batch > 1
        for handle in self._comparing if self._checked else ():
            handle.remove()

    def _follows(self) -> bool:
        return self.on and not beside()

    def _compare(self, name: str, gradient: Tensor) -> None:
        if self._follows():
            dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach().clone()
            self._seen[name] = self._seen[name] + dense if name in self._seen else dense

    def _start(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not (self._follows() and torch.is_grad_enabled()):
            return
        refuse_coupled(self._batch_norms)
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim()]
        self.batch = len(leaves[0]) if leaves else 0
        if not self._checked and self.batch > 1:
            arguments = model, self._layers, self.batch, (args, kwargs)
            self._doubts[self.batch] = self._doubts.get(self.batch) or rows_that_stay(*arguments)
            self._shared = shared(*arguments)

    def _see(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        if not (self._follows() and torch.is_grad_enabled() and output.requires_grad):
            return None
        self._calls.update(self._names[module].values())
        x = layer_input(args, kwargs).detach()
        wide = None
        if module in self._shared and len(x) == 1 < self.batch:
            # Positions (1, T) are shared by the examples: widened here, autograd adds the examples up later.
            x, wide = x.expand(self.batch, *x.shape[1:]), output.expand(self.batch, *output.shape[1:])
        kept = [x]  # let go of in the backward pass, as autograd does

        def use(g: Tensor) -> None:
            if kept:
                self._use(module, kept.pop(), g)
            else:
                self.twice = True

        (output if wide is None else wide).register_hook(use)
        return wide

    def _opened(self, module: nn.Module) -> None:
        if not self._begun:
            self._begun = True
            self._begin()
        now = torch._C._current_graph_task_id()  # of the backward pass under way
        for name in self._names[module].values():
            self.twice |= self._passes.setdefault(name, now) != now

    @torch.no_grad()
    def _use(self, module: nn.Module, x: Tensor, g: Tensor) -> None:
        self._opened(module)
        if g.dtype in HALF:
            g = g.float()
        if x.dtype in HALF:
            x = x.float()
        names = self._names[module]
        with unrounded(g.device):
            for local, use in RULES[type(module)](module, x, g).items():
                if local in names:
                    self._keep(names[local], use)

    def _keep(self, name: str, use: Use) -> None:
        """Only what has to wait: a parameter with one use is done with, and its layer's tensors are free again."""
        self._rows.append((name, examples(use)))
        if self._calls[name] == 1 and self._checked:
            self._norms[name] = norm([use])
        else:
            self._uses.setdefault(name, []).append(use)

    def _see_lstm(self, module: nn.LSTM, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if not (self._follows() and torch.is_grad_enabled() and output[0].requires_grad):
            return
        self._calls.update(self._names[module].values())
        x, state = [*args, *(kwargs[name] for name in ("input", "hx")[len(args) :] if name in kwargs), None][:2]
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise ValueError(f"LSTM on {type(x).__name__}: per-example norms need a padded batch (B, T, width)")
        gradients: list[Tensor | None] = [None, None, None]
        start = None if state is None else tuple(t.detach() for t in state)
        self._records.append((module, Record(x.detach(), start, output[0].detach(), gradients)))

        def keep(i: int, g: Tensor) -> None:
            self._opened(module)
            gradients[i] = g

        for i, part in enumerate((output[0], *output[1])):
            if part.requires_grad:
                part.register_hook(lambda g, i=i: keep(i, g))
