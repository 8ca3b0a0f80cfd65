r"""Whether every layer's input has the examples first, tried out: the model is run again without gradients.

A layer that sees B rows may see B positions instead, where there happen to be as many; then rows aren't examples, and
nothing in one pass tells them apart. One example less does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisescale.side_effects import undisturbed

Call = tuple[tuple[Any, ...], dict[str, Any]]


def layer_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a layer is called on, by place or as `input`."""
    return args[0] if args else kwargs["input"]


def rows_that_stay(model: nn.Module, layers: Mapping[nn.Module, str], batch: int, call: Call) -> str:
    """What is wrong with the layers' inputs, found by giving the model one example less; '' if nothing.

    Args:
        model: `model(*call[0], **call[1])` is what training is about to call.
        layers: those in question, with their names.
        batch: examples in the call, at least 2: its tensors of that length are shortened.
        call: positional and keyword arguments.
    """
    stay: dict[str, None] = {}

    def see(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        x = layer_input(args, kwargs)
        time_first = isinstance(module, nn.LSTM) and not module.batch_first
        if isinstance(x, Tensor) and x.shape[time_first] == batch:
            stay[layers[module]] = None

    def shorter(leaf: Any) -> Any:
        return leaf[:-1] if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == batch else leaf

    try:
        _run(model, layers, see, pytree.tree_map(shorter, call))
    except Exception as error:
        return (
            "can't tell whether the examples come first in every layer's input, since the model doesn't run on "
            f"{batch - 1} of its {batch} examples ({error})"
        )
    if stay:
        return f"{', '.join(stay)}: its input has {batch} rows with {batch - 1} examples too, so they aren't examples"
    return ""


def shared(model: nn.Module, layers: Mapping[nn.Module, str], batch: int, call: Call) -> set[nn.Module]:
    r"""The embeddings of ids (1, …), as of positions, of which each example may be given a copy; arguments as above.

    With the output widened to (batch, …), the model's output must be the same to the bit, and what is added to the last
    example's copy must change that example, and no other, in the layers' inputs or in the model's output.
    """
    found: dict[nn.Module, None] = {}

    def see(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(module, nn.Embedding) and len(layer_input(args, kwargs)) == 1:
            found[module] = None

    if not any(isinstance(module, nn.Embedding) for module in layers):
        return set()
    before = _run(model, layers, see, call)
    return {module for module in found if _copies_keep_apart(model, layers, module, batch, call, before)}


def _copies_keep_apart(
    model: nn.Module, layers: Mapping[nn.Module, str], shared: nn.Module, batch: int, call: Call, before: list[Tensor]
) -> bool:
    def widened(added: float) -> tuple[list[Tensor], list[Tensor]]:
        inputs: list[Tensor] = []

        def see(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor | None:
            x = layer_input(args, kwargs)
            if isinstance(x, Tensor):
                inputs.append(x.clone())
            if module is not shared or len(x) > 1:
                return None
            copies = output.repeat(batch, *[1] * (output.dim() - 1))
            copies[-1] += added
            return copies

        return _run(model, layers, see, call), inputs

    try:
        (output, inputs), (changed_output, changed_inputs) = widened(0.0), widened(1.0)
    except Exception:
        return False
    if len(output) != len(before) or not all(map(torch.equal, output, before)):
        return False
    pairs = [
        (a, b)
        for a, b in zip([*inputs, *output], [*changed_inputs, *changed_output], strict=True)
        if a.dim() and len(a) == len(b) == batch
    ]
    others_stay = all(torch.equal(a[:-1], b[:-1]) for a, b in pairs)
    return others_stay and any(not torch.equal(a[-1], b[-1]) for a, b in pairs)


def _run(model: nn.Module, layers: Iterable[nn.Module], see: Callable[..., Any], call: Call) -> list[Tensor]:
    """The tensors that the model returns, with `see` as a hook on the layers; nothing is left changed."""
    return torch.compiler.disable(_seen)(model, layers, see, call)  # not as a decorator: it takes a second to import


def _seen(model: nn.Module, layers: Iterable[nn.Module], see: Callable[..., Any], call: Call) -> list[Tensor]:
    handles = [layer.register_forward_hook(see, with_kwargs=True) for layer in layers]
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # or training would get weights that were cast without gradients
    try:
        with torch.no_grad(), undisturbed(model):
            output = model(*call[0], **call[1])
    finally:
        torch.set_autocast_cache_enabled(cached)
        for handle in handles:
            handle.remove()
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
