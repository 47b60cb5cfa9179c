"""Batch norm's passes over [N,H] on a GPU, N = T * B frames, in Triton: two launches forward, two backward.

    forward    tile_moments     count, mean and squared deviations of each stretch of rows
               folded_moments   the stretches as one (Chan, Golub and LeVeque, 1979); scale and shift
    backward   tile_sums        sum delta, sum delta (z - mean) of each stretch
               input_gradient   their totals, dgamma and dbeta; dz over z, in place

A program owns `COLUMNS` columns of one of at most `STRETCHES` stretches of rows and goes through it `ROWS` rows at a
time. Sums run in float32 (float64 for float64) in an order that depends on N alone, so reruns are bit-identical, and
nothing is read on the host. The same sources run in Triton's interpreter on a CPU, which is how they are tested without
a GPU. `no_type_check` keeps a type checker's import hook from wrapping what Triton reads as source.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.sequence_moments import COLUMNS, ROWS, STRETCHES, stretches

_SIZES = (ROWS, COLUMNS, STRETCHES)
_compiled: dict[tuple[Any, ...], Any] = {}


def norm_statistics(z: Tensor, mask: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [2,H] of the frames of z [T,B,H] where `mask` [T,B,1] is 1; scale and shift [2,H]."""
    N, H = _rows(z)
    dtype = torch.promote_types(z.dtype, torch.float32)
    parts = torch.empty(STRETCHES, 3, H, device=z.device, dtype=dtype)
    moments, folded = (torch.empty(2, H, device=z.device, dtype=dtype) for _ in range(2))
    rows, grid = stretches(N, H)
    double = dtype == torch.float64
    with _device(z):
        _launch(tile_moments, grid, (z, mask, parts), (N, rows), (H, double, *_SIZES))
        _launch(folded_moments, grid[1:], (parts, gamma, beta, moments, folded), (grid[0],), (H, eps, *_SIZES))
    return moments, folded


def norm_gradient_sums(delta: Tensor, z: Tensor, moments: Tensor) -> Tensor:
    """Sums of delta and of delta (z - mean), each [T,B,H], over each stretch of rows: [stretches,2,H]."""
    N, H = _rows(z)
    rows, grid = stretches(N, H)
    sums = torch.empty(grid[0], 2, H, device=z.device, dtype=moments.dtype)
    with _device(z):
        _launch(tile_sums, grid, (delta, z, moments, sums), (N, rows), (H, moments.dtype == torch.float64, *_SIZES))
    return sums


def norm_gradient(
    delta: Tensor, z: Tensor, mask: Tensor, moments: Tensor, gamma: Tensor, eps: float, count: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Puts dz in the place of z [T,B,H], zero where `mask` is; dgamma and dbeta [H] of `sums` [stretches,2,H]."""
    N, H = _rows(z)
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
    rows, grid = stretches(N, H)
    tensors = delta, z, mask, moments, gamma, count, sums, dgamma, dbeta
    double = moments.dtype == torch.float64
    with _device(z):
        _launch(input_gradient, grid, tensors, (len(sums), N, rows), (H, eps, double, *_SIZES))
    return dgamma, dbeta


def _launch(
    kernel: Any, grid: tuple[int, ...], tensors: tuple[Tensor, ...], counts: tuple[int, ...], constants: tuple[Any, ...]
) -> None:
    """`kernel[grid](...)` without what Triton does at every launch to find the compiled kernel: that takes longer than
    the launch.

    Triton compiles for dtypes, for addresses that are multiples of 16, and for the numbers among `constants`, but for
    no value of `counts` below 2^31. What else comes goes Triton's way.
    """
    key = compiled = None
    if not any(tensor.data_ptr() % 16 for tensor in tensors) and max(counts) < 2**31:
        key = id(kernel), tensors[0].get_device(), *(tensor.dtype for tensor in tensors), *constants
        compiled = _compiled.get(key)
    if compiled is not None:
        compiled[(*grid, 1, 1)[:3]](*tensors, *counts, *constants)
        return
    compiled = kernel[grid](*tensors, *counts, *constants)
    if key is not None and compiled is not None:  # Triton's interpreter compiles nothing
        _compiled[key] = compiled


def _device(z: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, whichever it is that the tensors are on."""
    elsewhere = z.is_cuda and z.device.index != torch.cuda.current_device()
    return torch.cuda.device(z.device) if elsewhere else nullcontext()


def _rows(z: Tensor) -> tuple[int, int]:
    T, B, H = z.shape
    return T * B, H


@triton.jit(do_not_specialize=["N", "rows"])
@no_type_check
def tile_moments(
    z, mask, parts, N, rows, H, DOUBLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRETCHES: tl.constexpr
):
    dtype: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < H
    n = tl.zeros([COLUMNS], dtype)
    mean = tl.zeros([COLUMNS], dtype)
    squares = tl.zeros([COLUMNS], dtype)
    for start in range(0, rows, ROWS):
        row = tl.program_id(0) * rows + start + tl.arange(0, ROWS)
        valid = tl.load(mask + row, mask=row < N, other=0.0) > 0
        taken = valid[:, None] & inside[None, :]
        here = row.to(tl.int64)[:, None] * H + column[None, :]
        value = tl.load(z + here, mask=taken, other=0.0).to(dtype)
        m = tl.sum(valid.to(dtype), 0)
        new = tl.sum(value, 0) / tl.maximum(m, 1.0)
        deviation = tl.where(taken, value - new[None, :], 0.0)
        both = tl.maximum(n + m, 1.0)
        apart = new - mean
        squares += tl.sum(deviation * deviation, 0) + apart * apart * (n * m / both)
        mean += apart * (m / both)
        n += m
    place = parts + tl.program_id(0) * 3 * H + column
    tl.store(place, n, mask=inside)
    tl.store(place + H, mean, mask=inside)
    tl.store(place + 2 * H, squares, mask=inside)


@triton.jit(do_not_specialize=["count"])
@no_type_check
def folded_moments(
    parts,
    gamma,
    beta,
    moments,
    folded,
    count,
    H,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRETCHES: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < H
    stretch = tl.arange(0, STRETCHES)
    place = parts + stretch[:, None] * 3 * H + column[None, :]
    taken = (stretch < count)[:, None] & inside[None, :]
    n = tl.load(place, mask=taken, other=0.0)
    means = tl.load(place + H, mask=taken, other=0.0)
    squares = tl.load(place + 2 * H, mask=taken, other=0.0)
    total = tl.maximum(tl.sum(n, 0), 1.0)
    mean = tl.sum(n * means, 0) / total
    apart = means - mean[None, :]
    var = tl.sum(squares + n * apart * apart, 0) / total
    scale = tl.load(gamma + column, mask=inside, other=0.0).to(mean.dtype) / tl.sqrt(var + eps)
    shift = tl.load(beta + column, mask=inside, other=0.0).to(mean.dtype) - mean * scale
    tl.store(moments + column, mean, mask=inside)
    tl.store(moments + H + column, var, mask=inside)
    tl.store(folded + column, scale, mask=inside)
    tl.store(folded + H + column, shift, mask=inside)


@triton.jit(do_not_specialize=["N", "rows"])
@no_type_check
def tile_sums(
    delta,
    z,
    moments,
    sums,
    N,
    rows,
    H,
    DOUBLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRETCHES: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < H
    mean = tl.load(moments + column, mask=inside, other=0.0)
    of_delta = tl.zeros([COLUMNS], dtype)
    with_z = tl.zeros([COLUMNS], dtype)
    for start in range(0, rows, ROWS):
        row = tl.program_id(0) * rows + start + tl.arange(0, ROWS)
        taken = (row < N)[:, None] & inside[None, :]
        here = row.to(tl.int64)[:, None] * H + column[None, :]
        d = tl.load(delta + here, mask=taken, other=0.0).to(dtype)
        value = tl.load(z + here, mask=taken, other=0.0).to(dtype)
        of_delta += tl.sum(d, 0)
        with_z += tl.sum(d * (value - mean[None, :]), 0)
    place = sums + tl.program_id(0) * 2 * H + column
    tl.store(place, of_delta, mask=inside)
    tl.store(place + H, with_z, mask=inside)


@triton.jit(do_not_specialize=["parts", "N", "rows"])
@no_type_check
def input_gradient(
    delta,
    z,
    mask,
    moments,
    gamma,
    count,
    sums,
    dgamma,
    dbeta,
    parts,
    N,
    rows,
    H,
    eps,
    DOUBLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRETCHES: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < H
    stretch = tl.arange(0, STRETCHES)
    place = sums + stretch[:, None] * 2 * H + column[None, :]
    given = (stretch < parts)[:, None] & inside[None, :]
    of_delta = tl.sum(tl.load(place, mask=given, other=0.0), 0)
    with_z = tl.sum(tl.load(place + H, mask=given, other=0.0), 0)
    mean = tl.load(moments + column, mask=inside, other=0.0)
    rstd = 1.0 / tl.sqrt(tl.load(moments + H + column, mask=inside, other=0.0) + eps)
    if tl.program_id(0) == 0:
        tl.store(dbeta + column, of_delta.to(dbeta.dtype.element_ty), mask=inside)
        tl.store(dgamma + column, (with_z * rstd).to(dgamma.dtype.element_ty), mask=inside)
    n = tl.maximum(tl.load(count).to(dtype), 1.0)
    scale = tl.load(gamma + column, mask=inside, other=0.0).to(dtype) * rstd
    offset = scale * of_delta / n
    slope = scale * rstd * rstd * with_z / n
    for start in range(0, rows, ROWS):
        row = tl.program_id(0) * rows + start + tl.arange(0, ROWS)
        taken = (row < N)[:, None] & inside[None, :]
        valid = tl.load(mask + row, mask=row < N, other=0.0) > 0
        here = row.to(tl.int64)[:, None] * H + column[None, :]
        d = tl.load(delta + here, mask=taken, other=0.0).to(dtype)
        value = tl.load(z + here, mask=taken, other=0.0).to(dtype)
        gradient = d * scale[None, :] - offset[None, :] - (value - mean[None, :]) * slope[None, :]
        gradient = tl.where(valid[:, None], gradient, 0.0)
        tl.store(z + here, gradient.to(z.dtype.element_ty), mask=taken)
