"""Bytes of tensors alive while code runs, and their highest sum: every storage from its making to its end.

Under `FakeTensorMode` this runs a training step of any size without memory or arithmetic, so a peak is known before
anything is trained. What an operator allocates and frees inside itself (cuDNN's and cuBLAS's workspace) is not seen.
"""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`live` and `peak` in bytes, those of `alive` included from the start; `peaks` by phase."""

    def __init__(self, alive: Iterable[Tensor], phase: str = "") -> None:
        super().__init__()
        self.live = self.peak = 0
        self.peaks: dict[str, int] = {}
        self._phase = phase
        self._sizes: dict[int, int] = {}
        for tensor in alive:
            self._add(tensor)

    def begin(self, phase: str) -> None:
        """What follows belongs to `phase`, which may be taken up again."""
        self._phase = phase
        self._note()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return out

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.live += storage.nbytes()
        self._note()
        weakref.finalize(storage, self._remove, key)

    def _note(self) -> None:
        self.peak = max(self.peak, self.live)
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), self.live)

    def _remove(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
