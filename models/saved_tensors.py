"""How much autograd keeps for the backward pass, counted exactly.

`torch.autograd.graph.saved_tensors_hooks` shows each tensor as it is saved. Tensors that share a storage count once, at
the storage's size; parameters and buffers, which live anyway, do not count.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def saved_bytes(function: Callable[[], Any], alive: Iterable[Tensor] = ()) -> int:
    """Bytes of distinct storages saved while `function()` runs its forward, less those of `alive` (parameters, buffers,
    inputs)."""
    return sum(saved_by_part(function, {}, alive).values())


def saved_by_part(
    function: Callable[[], Any], parts: Mapping[str, nn.Module], alive: Iterable[Tensor] = ()
) -> dict[str, int]:
    """The same by the module that made what was saved: what enters one of `parts` belongs to the part before it.

    `parts` in the order in which they run; `rest` is what lies before, between and behind them.
    """
    ignored = {_key(tensor) for tensor in alive}
    sizes: dict[int, tuple[str, int]] = {}
    # Or a freed storage's identity would be taken for a new one's. Detached, here and below: a tensor that knows its
    # node and is held by that node's hooks would be a cycle that no collector sees, and never freed.
    held: list[Tensor] = []
    before, running = "rest", "rest"
    makers: dict[int, str] = {}

    def pack(tensor: Tensor) -> Tensor:
        key = _key(tensor)
        if key not in ignored and key not in sizes:
            sizes[key] = makers.get(key, running), tensor.untyped_storage().nbytes()
            held.append(tensor.detach())
        return tensor.detach()

    def enter(name: str, inputs: tuple[Any, ...]) -> None:
        nonlocal running
        entering = [tensor for tensor in inputs if isinstance(tensor, Tensor)]
        held.extend(tensor.detach() for tensor in entering)
        makers.update({_key(tensor): before for tensor in entering})
        running = name

    def leave(*_: Any) -> None:
        nonlocal running, before
        before, running = running, "rest"

    hooks = []
    for name, module in parts.items():
        hooks.append(module.register_forward_pre_hook(lambda _, inputs, name=name: enter(name, inputs)))
        hooks.append(module.register_forward_hook(leave))
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = function()
    finally:
        for hook in hooks:
            hook.remove()
    del result
    return {name: sum(size for part, size in sizes.values() if part == name) for name in (*parts, "rest")}


def _key(tensor: Tensor) -> int:
    # Fake tensors have a storage but no address.
    return tensor.untyped_storage()._cdata
