"""A recurrent layer in training as one autograd function: input GEMM, batch norm, recurrence.

    z = x W^T (+ skip, before batch norm);  mean, var of z over valid frames
    scale = gamma rstd,  shift = beta - mean scale
    h_t = f(scale z_t + shift (+ skip_t, after batch norm) + U h_{t-1})

Saved for the backward: x and h - and h is the next layer's x, so a layer costs one tensor [T,B,H] - besides vectors
[H]. z is made again by one GEMM: at 1152 units that is a hundredth of the recurrence's time, while keeping it would
double the memory. A skip behind the activation adds its sum, which the next layer saves; so 1.5 tensors a layer where
skips span two layers, 1.25 where they span four.

    delta   from the recurrence's own backward (`torch.ops.prnn_ext.rnn_backward`), zero in padding
    dU = sum_t delta_t^T h_{t-1},  dbeta = sum delta,  dgamma = rstd sum delta (z - mean)
    dz = scale (delta - dbeta / n - (z - mean) rstd dgamma / n),  dW = dz^T x,  dx = dz W

With synchronised statistics the two sums in dz and n are those of all ranks; dgamma and dbeta stay the rank's own, as
every parameter's gradient is before the data-parallel all-reduce. Precondition: x and skip are zero past each length.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.batch_norm import Moments, SequenceBatchNorm, pooled
from models.frames import Frames
from models.sequence_moments import accumulation_dtype, norm_gradient, norm_gradient_sums, norm_statistics
from prnn_ext.cpu_product import summed_outer


def normalised_recurrence(
    x: Float[Tensor, "T B D"],
    weight_ih: Float[Tensor, "H D"],
    weight_hh: Float[Tensor, "H H"],
    norm: SequenceBatchNorm,
    frames: Frames,
    skip: Float[Tensor, "T B H"] | None = None,
    *,
    before: bool = False,
    activation: str = "clipped_relu",
    backend: str = "auto",
) -> tuple[Float[Tensor, "T B H"], Moments]:
    """h, zero past each length, and the batch's statistics of z, with which the caller moves `norm`'s running ones.

    `skip` joins z before batch norm or, `before` being False, after it. Computes in x's dtype, under autocast in
    autocast's; statistics in float32 or better. Differentiable once.
    """
    world = dist.get_world_size() if norm.synchronised and dist.is_available() and dist.is_initialized() else 1
    h, moments, count = _NormalisedRecurrence.apply(
        x, weight_ih, weight_hh, norm.weight, norm.bias, skip, frames, norm.eps, before, activation, backend, world
    )
    return h, Moments(moments, count)


class _NormalisedRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        gamma: Tensor,
        beta: Tensor,
        skip: Tensor | None,
        frames: Frames,
        eps: float,
        before: bool,
        activation: str,
        backend: str,
        world: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if _autocast(device) else x.dtype
        with _plain(device):
            x = _cast(x, dtype).contiguous()
            skip = None if skip is None else _cast(skip, dtype)
            inside, outside = (skip, None) if before else (None, skip)
            z = _input_term(x, _cast(weight_ih, dtype), inside)
            count = _cast(frames.count, accumulation_dtype(dtype))
            moments, folded = norm_statistics(z, frames.mask, gamma, beta, eps)
            if world > 1:
                moments, folded, count = _over_ranks(moments, count, gamma, beta, eps)
            scale: Tensor | None
            shift: Tensor | None
            scale, shift = folded.unbind()
            if outside is not None:
                z, scale, shift = _cast(torch.addcmul(outside, z, scale).add_(shift), dtype), None, None
            h, _ = torch.ops.prnn_ext.rnn.default(
                z, _cast(weight_hh, dtype), None, frames.lengths, scale, shift, activation, False, backend
            )
        ctx.save_for_backward(x, h, inside, weight_ih, weight_hh, gamma, moments, count, frames.lengths, frames.mask)
        ctx.arguments = before, activation, backend, world, dtype, eps
        ctx.mark_non_differentiable(moments, count)
        # Else autograd fills zeros in for the two.
        ctx.set_materialize_grads(False)
        return h, moments, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_h is None:
            return (None,) * 12
        x, h, inside, weight_ih, weight_hh, gamma, moments, count, lengths, mask = ctx.saved_tensors
        before, activation, backend, world, dtype, eps = ctx.arguments
        with _plain(x.device.type):
            delta, _ = torch.ops.prnn_ext.rnn_backward.default(
                grad_h, h.new_zeros(h.shape[1:]), h, _cast(weight_hh, dtype), None, lengths, activation, False, backend
            )
            W = _cast(weight_ih, dtype)
            z = _input_term(x, W, inside)
            sums = own = norm_gradient_sums(delta, z, moments)
            if world > 1:
                own = sums.sum(0)
                sums = own.clone()[None]
                dist.all_reduce(sums)
            grad_gamma, grad_beta = norm_gradient(delta, z, mask, moments, gamma, eps, count, sums)
            if world > 1:
                grad_gamma = _cast(own[1] * torch.rsqrt(moments[1] + eps), gamma.dtype)
                grad_beta = _cast(own[0], gamma.dtype)
            grad_z, grad_x, grad_skip = z.flatten(0, 1), None, None
            if ctx.needs_input_grad[0]:
                grad_x = _product(grad_z, W).view(x.shape)
            if ctx.needs_input_grad[5]:
                grad_skip = z if before else delta
            return (
                grad_x,
                _outer(grad_z, x.flatten(0, 1), weight_ih.dtype),
                # Zeros past each length make the shifted product right for ragged batches.
                _outer(delta[1:].flatten(0, 1), h[:-1].flatten(0, 1), weight_hh.dtype),
                grad_gamma,
                grad_beta,
                grad_skip,
                *[None] * 6,
            )


def _plain(device: str) -> AbstractContextManager[Any]:
    """Without autocast, whose context costs as much host time as a launch where there is nothing to switch off."""
    return torch.autocast(device, enabled=False) if _autocast(device) else nullcontext()


def _autocast(device: str) -> bool:
    return device != "meta" and torch.is_autocast_enabled(device)  # asking about meta raises


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _over_ranks(
    moments: Tensor, count: Tensor, gamma: Tensor, beta: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance, scale and shift, each [2,H], and valid frames of all ranks together."""
    mean, spread, count = pooled(moments[0], moments[1] * count, count)
    var = spread / count.clamp(min=1)
    scale = _cast(gamma, mean.dtype) * torch.rsqrt(var + eps)
    shift = torch.addcmul(_cast(beta, mean.dtype), mean, scale, value=-1)
    return torch.stack([mean, var]), torch.stack([scale, shift]), count


def _input_term(x: Tensor, weight: Tensor, skip: Tensor | None) -> Tensor:
    """x W^T [T,B,H], plus skip: one GEMM either way, and bit-identical when called again."""
    rows, columns = x.flatten(0, 1), weight.t()
    z = _product(rows, columns) if skip is None else torch.addmm(skip.flatten(0, 1), rows, columns)
    return z.view(*x.shape[:2], -1)


def _product(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right) if left.is_cuda else summed_outer(left.t(), right)


def _outer(rows: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    """sum over frames of rows^T columns, [H,D], in the parameter's dtype: one GEMM."""
    if rows.is_cuda and rows.dtype != dtype and dtype == torch.float32:
        # cuBLAS sums in float32 anyway; asking for that output saves a rounding and a launch.
        return torch.mm(rows.t(), columns, out_dtype=dtype)
    return _cast(_product(rows.t(), columns), dtype)
