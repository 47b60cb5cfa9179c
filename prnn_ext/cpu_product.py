"""The products of the reference on a CPU: by oneDNN where it is faster than the BLAS behind ``addmm``, which is MKL.

oneDNN reads weights reordered once for all time steps, and uses AVX-512 where MKL, on processors not Intel's, does not:
in float32, on one core of an EPYC, a step of 1152 units takes 81 us instead of 249 at mini-batch 4 and 460 instead of
1,028 at 32, while at 128 units its call alone costs more than the product. torch.compile uses the same operator.
Both accumulate in float32; they differ in the order of sums, within the reference's error budget.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LEAST_PRODUCTS = 1 << 20
"""Multiplications in a time step from which oneDNN wins (measured: 256 units at mini-batch 16, 512 at 4)."""
_LEAST_BATCH = 4
_LEAST_STEPS = 8
"""Time steps from which reordering the weights pays."""

StepProduct = Callable[[Tensor, Tensor, Tensor], Tensor]


def step_product(weight: Tensor, batch_size: int, time_steps: int) -> StepProduct:
    """A function ``(term, h, out) -> term + h weight^T`` for [B, H] terms and states; it may or may not use ``out``."""
    products = batch_size * weight.shape[0] * weight.shape[1]
    if batch_size < _LEAST_BATCH or products < _LEAST_PRODUCTS or time_steps < _LEAST_STEPS or not _has_onednn(weight):
        transposed = weight.t()
        return lambda term, h, out: torch.addmm(term, h, transposed, out=out)
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), batch_size)
    multiply = torch.ops.mkldnn._linear_pointwise.binary
    return lambda term, h, out: multiply(h, term, reordered, None, "add")


def summed_outer(left: Tensor, right: Tensor) -> Tensor:
    """``left^T right`` [H, H] of two [N, H] tensors."""
    # oneDNN's operator has no derivative, and says so with a warning where a graph of the backward pass is recorded.
    if torch.is_grad_enabled():
        return left.t() @ right
    # A compiler traces this with tensors of its own types; Inductor takes oneDNN's operator for constant weights only.
    if type(left) is Tensor and _has_onednn(left) and left.numel() and right.numel():
        return torch.ops.mkldnn._linear_pointwise(left.t(), right.t(), None, "none", [], "")
    return left.t() @ right


def _has_onednn(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and torch.backends.mkldnn.is_available()
