"""Statistics that stay in float32 when a network is moved to a lower precision.

`module.to(torch.bfloat16)` casts floating buffers too. A running mean that moves by a tenth of a small difference does
not move at all in bfloat16, and a corpus mean loses all but its first three digits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def keep_buffers_float32(
    module: nn.Module, apply: Callable[..., Any], fn: Callable[[Tensor], Tensor], recurse: bool
) -> Any:
    """`nn.Module._apply` that lets a module's own floating buffers change device but not precision."""
    kept = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_floating_point()}
    result = apply(fn, recurse)
    for name, buffer in kept.items():
        moved = module._buffers[name]
        if moved is not None and moved.dtype != torch.float32:
            module._buffers[name] = buffer.to(moved.device) if not buffer.is_meta else moved.float()
    return result
