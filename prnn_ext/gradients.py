"""What every backend shares after the sequential part of the backward pass.

``delta`` [T, B, H] is the gradient at the activation's argument, zero past each length. From it

    dx = scale * delta,   dscale = sum(delta * x),   dshift = sum(delta),   dU = sum_t delta_t^T h_prev

where ``h_prev`` is the output shifted by one frame, with ``h_0`` before the first. All time steps together make dU one
GEMM (accumulated in float32 for half precision, as cuBLAS and oneDNN do); the sums accumulate in float32 or better.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prnn_ext.cpu_product import summed_outer
from prnn_ext.reference import at_last_frame


def input_gradient(delta: Tensor, scale: Tensor | None) -> Tensor:
    """dx [T, B, H] in the dtype of ``delta``."""
    return delta if scale is None else (delta * scale).to(delta.dtype)


def scale_gradient(delta: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    """dscale [H] in float32 or better; frames past a length are left out whatever they hold."""
    product = delta.to(_sum_dtype(delta)) * x
    if lengths is not None:
        padding = torch.arange(x.shape[0], device=x.device)[:, None] >= lengths
        product.masked_fill_(padding[:, :, None], 0.0)
    return product.sum((0, 1))


def shift_gradient(delta: Tensor) -> Tensor:
    """dshift [H] in float32 or better."""
    return delta.sum((0, 1), dtype=_sum_dtype(delta))


def weight_gradient(delta: Tensor, output: Tensor, h_0: Tensor | None, lengths: Tensor | None, reverse: bool) -> Tensor:
    """dU [H, H] in the dtype of ``delta``.

    Zeros past each length make the shifted product right for ragged batches: forward, ``delta`` is zero there; in
    reverse, ``output`` is, and the step that ``h_0`` entered is each utterance's last frame.
    """
    T, _, H = delta.shape
    if T == 0:
        return delta.new_zeros(H, H)
    later, earlier = (delta[:-1], output[1:]) if reverse else (delta[1:], output[:-1])
    weight = summed_outer(later.flatten(0, 1), earlier.flatten(0, 1))
    if h_0 is None:
        return weight
    entered = delta[-1 if reverse else 0]
    if reverse and lengths is not None:
        entered = at_last_frame(delta, lengths)
    return weight.addmm_(entered.t(), h_0)


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
