"""What the recurrent stack keeps for its backward pass: everything, segment boundaries, or everything on the host.

* `save`: each layer keeps what its backward reads, 1.25 tensors [T,B,H] at skip span 4 (`recurrent_function`).
* `recompute`: the stack is cut into segments of whole modules, about sqrt(L) layers each; only their inputs are kept,
  and a segment runs again when its backward comes. Memory grows as sqrt(L), time by one forward.
* `offload`: as `save`, but on CUDA the tensors wait in page-locked host memory. Copies run on a stream of their own. On
  a CPU they are in host memory already, and it is `save`.

All three compute the same numbers, bit by bit: the same functions on the same values in the same order.
"""

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

MemoryPolicy = Literal["save", "recompute", "offload"]
SMALLEST_OFFLOADED = 1 << 18
"""Bytes; below, a copy costs more than the memory it frees."""


def segments(num_layers: int, module_layers: int) -> list[range]:
    """The layers 1..L, cut into whole modules of k layers, about sqrt(L) layers a segment."""
    length = module_layers * max(1, round(math.sqrt(num_layers) / module_layers))
    return [range(start, min(start + length, num_layers + 1)) for start in range(1, num_layers + 1, length)]


def offloading(alive: Iterable[Tensor], device: torch.device) -> AbstractContextManager[Any]:
    """Within it, what autograd saves on a CUDA device is kept on the host; `alive` (parameters, buffers) stays."""
    if device.type != "cuda":
        return nullcontext()
    host = _Host(alive, device)
    return torch.autograd.graph.saved_tensors_hooks(host.pack, host.unpack)


class _Host:
    """Saved tensors in page-locked memory, each storage copied once however many nodes save it."""

    def __init__(self, alive: Iterable[Tensor], device: torch.device) -> None:
        self._alive = {tensor.untyped_storage().data_ptr() for tensor in alive}
        self._stream = torch.cuda.Stream(device)
        self._copies: dict[tuple[Any, ...], tuple[StorageWeakRef, _Copy]] = {}

    def pack(self, tensor: Tensor) -> "Tensor | _Copy":
        storage = tensor.untyped_storage()
        if not tensor.is_cuda or tensor.nbytes < SMALLEST_OFFLOADED or storage.data_ptr() in self._alive:
            return tensor
        key = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        known = self._copies.get(key)
        # An address alone does not identify a storage: it is used again once the storage is gone.
        if known is not None and not known[0].expired():
            return known[1]
        copy = _Copy(tensor, self._stream)
        self._copies[key] = StorageWeakRef(storage), copy
        return copy

    def unpack(self, packed: "Tensor | _Copy") -> Tensor:
        return packed if isinstance(packed, Tensor) else packed.back()


class _Copy:
    """One tensor's stay on the host."""

    def __init__(self, tensor: Tensor, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = tensor.device, stream
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            self._host.copy_(tensor, non_blocking=True)
        # The allocator must not hand out the memory before the copy has read it.
        tensor.record_stream(stream)

    def back(self) -> Tensor:
        """The tensor on its device again."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        return self._host.to(self._device, non_blocking=True)
