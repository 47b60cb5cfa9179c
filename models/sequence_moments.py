"""The passes over [T,B,H] that batch norm of a recurrent layer's input term costs, as three ops.

    forward    norm_statistics      mean, variance of z over valid frames; scale = gamma rstd, shift = beta - mean scale
    backward   norm_gradient_sums   sum delta, sum delta (z - mean)
               norm_gradient        dz = scale (delta - sum delta / n - (z - mean) rstd^2 sum delta (z - mean) / n)

delta must be zero in padding, so that its sums over all frames are those over the n valid ones. Sums accumulate in
float32, or float64 for float64. On CUDA, where Triton is installed, each op is one or two launches (`moments_kernels`);
elsewhere plain PyTorch. They are registered so that a step can be traced without a GPU (`torch.ops.prnn_norm`).
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

STRETCHES = 32
"""At most so many stretches of frames are summed by themselves on CUDA, in tiles of ROWS frames x COLUMNS units."""
ROWS, COLUMNS = 32, 64

_library = torch.library.Library("prnn_norm", "DEF")
_library.define("norm_statistics(Tensor z, Tensor mask, Tensor gamma, Tensor beta, float eps) -> (Tensor, Tensor)")
_library.define("norm_gradient_sums(Tensor delta, Tensor z, Tensor moments) -> Tensor")
_library.define(
    "norm_gradient(Tensor delta, Tensor(a!) z, Tensor mask, Tensor moments, Tensor gamma, float eps, Tensor count, "
    "Tensor sums) -> (Tensor, Tensor)"
)


def norm_statistics(z: Tensor, mask: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Of the frames of z [T,B,H] where `mask` [T,B,1], float32, is 1: mean and biased variance [2,H]; scale and shift
    [2,H].

    Both are float32 or better; without a valid frame, mean and variance are 0.
    """
    return torch.ops.prnn_norm.norm_statistics.default(z, mask, gamma, beta, eps)


def norm_gradient_sums(delta: Tensor, z: Tensor, moments: Tensor) -> Tensor:
    """Of delta and delta (z - mean), each [T,B,H]: sums over stretches of frames, [stretches,2,H]."""
    return torch.ops.prnn_norm.norm_gradient_sums.default(delta, z, moments)


def norm_gradient(
    delta: Tensor, z: Tensor, mask: Tensor, moments: Tensor, gamma: Tensor, eps: float, count: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Overwrites z [T,B,H] with dz, zero where `mask` is; returns dgamma and dbeta [H] in gamma's dtype.

    `count` [] is n, and `sums` [stretches,2,H] what `norm_gradient_sums` gave, both of all ranks where statistics are
    synchronised; dgamma and dbeta are then those of all ranks too.
    """
    return torch.ops.prnn_norm.norm_gradient.default(delta, z, mask, moments, gamma, eps, count, sums)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which sums over frames are made: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def stretches(N: int, H: int) -> tuple[int, tuple[int, int]]:
    """Frames of a stretch, whole tiles of them, and the grid on CUDA: stretches x blocks of columns."""
    rows = ROWS * max(1, -(-N // (ROWS * STRETCHES)))
    return rows, (max(1, -(-N // rows)), -(-H // COLUMNS))


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _launches(z: Tensor) -> bool:
    """Whether `moments_kernels` does it."""
    return z.is_cuda and _has_triton()


def _statistics(z: Tensor, mask: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if _launches(z):
        from models import moments_kernels

        return moments_kernels.norm_statistics(z, mask, gamma, beta, eps)
    dtype = accumulation_dtype(z.dtype)
    n = mask.sum(dtype=dtype).clamp(min=1)
    # The zeros of the padding add nothing; only once the mean was subtracted they are zeros no longer.
    mean = z.sum((0, 1), dtype=dtype) / n
    var = (z - mean).mul_(mask).square_().sum((0, 1)) / n
    scale = gamma.to(dtype) * torch.rsqrt(var + eps)
    shift = torch.addcmul(beta.to(dtype), mean, scale, value=-1)
    return torch.stack([mean, var]), torch.stack([scale, shift])


def _gradient_sums(delta: Tensor, z: Tensor, moments: Tensor) -> Tensor:
    if _launches(z):
        from models import moments_kernels

        return moments_kernels.norm_gradient_sums(delta, z, moments)
    with_z = (z - moments[0]).mul_(delta)
    return torch.stack([delta.sum((0, 1), dtype=moments.dtype), with_z.sum((0, 1))])[None]


def _gradient(
    delta: Tensor, z: Tensor, mask: Tensor, moments: Tensor, gamma: Tensor, eps: float, count: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    if _launches(z):
        from models import moments_kernels

        return moments_kernels.norm_gradient(delta, z, mask, moments, gamma, eps, count, sums)
    (of_delta, with_z), (mean, var), n = sums.sum(0), moments, count.clamp(min=1)
    rstd = torch.rsqrt(var + eps)
    scale = gamma.to(mean.dtype) * rstd
    centred = z.sub_(mean) if z.dtype == mean.dtype else z - mean
    dz = centred.mul_(-scale * rstd.square() * with_z / n).addcmul_(delta, scale).sub_(scale * of_delta / n).mul_(mask)
    if dz is not z:
        z.copy_(dz)
    return (with_z * rstd).to(gamma.dtype), of_delta.to(gamma.dtype)


def _statistics_fake(z: Tensor, mask: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    vectors = z.new_empty(2, z.shape[2], dtype=accumulation_dtype(z.dtype))
    return vectors, torch.empty_like(vectors)


def _gradient_sums_fake(delta: Tensor, z: Tensor, moments: Tensor) -> Tensor:
    T, B, H = z.shape
    return moments.new_empty(stretches(T * B, H)[1][0] if _launches(z) else 1, 2, H)


def _gradient_fake(
    delta: Tensor, z: Tensor, mask: Tensor, moments: Tensor, gamma: Tensor, eps: float, count: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gamma), torch.empty_like(gamma)


for _name, _run, _fake in (
    ("norm_statistics", _statistics, _statistics_fake),
    ("norm_gradient_sums", _gradient_sums, _gradient_sums_fake),
    ("norm_gradient", _gradient, _gradient_fake),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"prnn_norm::{_name}", _fake, lib=_library)
