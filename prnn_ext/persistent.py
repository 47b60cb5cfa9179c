"""The CUDA backend: the persistent kernel behind the op. Design: docs/KERNEL.md.

`forward` and `backward` are the sequential halves, as in `prnn_ext.reference`. A call makes its outputs and a zeroed
workspace with torch's allocator and launches one cooperative kernel on the current stream: nothing waits for the
device, launches on several streams share nothing, and a CUDA graph can capture them.

A wait inside the kernel that exceeds `wait_limit` seconds ends the launch with outputs of NaN and raises a word in
pinned host memory, which the next call reads without waiting for the device and `check` after waiting. A length outside
0..T, which the kernel clamps, raises another, which `check` alone reports.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache as remember
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from prnn_ext.compiler import CompilerMissingError, compile_cubin, nvrtc_version
from prnn_ext.driver import Kernel, PreparedLaunch, current_stream, load_kernel
from prnn_ext.tiles import DTYPES, SIDES, Gpu, Tiles
from prnn_ext.tiles import choose_tiles as plan_tiles

wait_limit = 10.0
"""Seconds that a block waits for the others before the launch is given up."""

_LAUNCH = "PPPPPPPPPPPQiii"
"""struct Launch of prnn_ext/cuda/shape.cuh."""
_STALLED, _LENGTH = 0, 1
_ALIGNMENT = 16


class KernelStalledError(RuntimeError):
    """A launch gave up waiting for its blocks; its outputs are NaN."""


class LengthError(ValueError):
    """A launch met a length outside 0..T and clamped it."""


def forward(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None,
    lengths: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    activation: str,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``output [T, B, H]``, zero past each length, and ``h_n [B, H]``; arguments as in `prnn_ext.reference.forward`."""
    if not x.numel():
        return torch.empty_like(x), x.new_zeros(x.shape[1:]) if h_0 is None else h_0.clone()
    half = _half(x.shape[2], x.shape[1], x.dtype, False, activation, x.device.index)
    return _run(half, reverse, x, weight_hh, h_0, lengths, scale, shift, None)


def backward(
    grad_output: Tensor,
    grad_h_n: Tensor,
    output: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None,
    lengths: Tensor | None,
    activation: str,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``delta [T, B, H]`` and ``grad_h_0 [B, H]``, as in `prnn_ext.reference.backward`."""
    if not output.numel():
        return torch.empty_like(output), grad_h_n.clone()
    half = _half(output.shape[2], output.shape[1], output.dtype, True, activation, output.device.index)
    return _run(half, reverse, grad_output, weight_hh, grad_h_n, lengths, None, None, output)


def choose_tiles(x: Tensor, weight_hh: Tensor, backward: bool = False) -> Tiles:
    """How the kernel splits this layer over the GPU of ``x``; raises ``ValueError`` where it does not fit."""
    return plan_tiles(x.shape[2], x.shape[1], _name(x.dtype), backward, _gpu(x.device.index))


def unsupported_reasons(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    activation: str = "clipped_relu",
    reverse: bool = False,
) -> list[str]:
    """Why the kernel cannot run these arguments, a sentence each; empty where it can."""
    T, B, H = x.shape
    return list(_reasons(x.dtype, x.device.index, H, B if T else 0))


@remember
def _reasons(dtype: torch.dtype, device: int, hidden_size: int, batch_size: int) -> tuple[str, ...]:
    reasons = []
    if _name(dtype) not in DTYPES:
        reasons.append(
            f"The persistent kernel stores {', '.join(DTYPES)} and x is {_name(dtype)}; cast x, or use "
            "backend='reference'."
        )
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        reasons.append(
            f"The persistent kernel needs compute capability 8.0 or later and cuda:{device} has {major}.{minor}; use "
            "backend='reference'."
        )
    try:
        nvrtc_version()
    except CompilerMissingError as error:
        reasons.append(str(error))
    if not reasons and hidden_size and batch_size:
        try:
            for backward in (False, True):
                plan_tiles(hidden_size, batch_size, _name(dtype), backward, _gpu(device))
        except ValueError as error:
            reasons.append(str(error))
    return tuple(reasons)


def check() -> None:
    """Wait for the current device, then raise for what any launch so far reported."""
    torch.cuda.synchronize()
    for device in range(torch.cuda.device_count()):
        _raise_stalled(device)
        status = _status(device)
        if status[_LENGTH]:
            status[_LENGTH] = 0
            raise LengthError(
                f"A call on cuda:{device} was given lengths outside 0..T and clamped them; give lengths within it."
            )


def launch(
    tiles: Tiles,
    activation: str,
    reverse: bool,
    steps: Tensor,
    weight_hh: Tensor,
    first: Tensor | None,
    lengths: Tensor | None,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    hidden: Tensor | None = None,
    extra: tuple[tuple[str, int], ...] = (),
) -> tuple[Tensor, Tensor]:
    """Run one half with these tiles.

    ``steps``: x, or grad_output; ``first``: h_0, or grad_h_n; ``hidden``: output of the forward half; ``extra``: macros
    of test variants. Raises `KernelStalledError` if an earlier launch was given up.
    """
    half = _prepared(tiles, activation, steps.device.index, extra)
    return _run(half, reverse, steps, weight_hh, first, lengths, scale, shift, hidden)


@dataclass(frozen=True)
class _Half:
    """What all launches of one half of a layer share."""

    device: int
    prepared: PreparedLaunch
    workspace_bytes: int
    status: ctypes.Array
    status_address: int


def _run(
    half: _Half,
    reverse: bool,
    steps: Tensor,
    weight_hh: Tensor,
    first: Tensor | None,
    lengths: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    hidden: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Every statement here is host time of every layer of every step: docs/KERNEL.md counts it."""
    if half.status[_STALLED]:
        _raise_stalled(half.device)
    T, B, H = steps.shape
    output = torch.empty_like(steps)
    last = steps.new_empty(B, H)
    workspace = steps.new_empty(half.workspace_bytes, dtype=torch.uint8)
    given: tuple[Tensor | None, ...] = (steps, weight_hh, first, lengths, scale, shift, hidden)
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in given]
    if reduce(or_, pointers) % _ALIGNMENT:
        given = tuple(map(_aligned, given))
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in given]
    cleared = workspace.data_ptr()
    half.prepared(
        current_stream(half.device),
        (*pointers, output.data_ptr(), last.data_ptr(), cleared, half.status_address, int(wait_limit * 1e9), T, B,
         reverse),
        (cleared, half.workspace_bytes // 4),
    )  # fmt: skip
    return output, last


def _aligned(tensor: Tensor | None) -> Tensor | None:
    """The kernel reads four numbers at a time; a view may start anywhere."""
    return tensor if tensor is None or tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@remember
def _half(hidden_size: int, batch_size: int, dtype: torch.dtype, backward: bool, activation: str, device: int) -> _Half:
    """The planner's choice for this layer, ready to launch."""
    return _prepared(plan_tiles(hidden_size, batch_size, _name(dtype), backward, _gpu(device)), activation, device, ())


@remember
def _prepared(tiles: Tiles, activation: str, device: int, extra: tuple[tuple[str, int], ...]) -> _Half:
    prepared = _kernel(tiles, activation, device, extra).prepare(
        (tiles.blocks, 1, 1), (tiles.threads, 1, 1), tiles.shared_bytes
    )
    status = _status(device)
    return _Half(device, prepared, tiles.workspace_bytes, status, ctypes.addressof(status))


@remember
def _gpu(device: int) -> Gpu:
    properties = torch.cuda.get_device_properties(device)
    shared = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # torch's stub lacks it
    sides = SIDES.get(properties.name)
    return Gpu(properties.multi_processor_count, shared, cautious=properties.major != 9, sides=sides)


@remember
def _kernel(tiles: Tiles, activation: str, device: int, extra: tuple[tuple[str, int], ...]) -> Kernel:
    major, minor = torch.cuda.get_device_capability(device)
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    cubin = compile_cubin("recurrence.cu", {**tiles.defines(activation), **dict(extra)}, arch)
    return load_kernel(cubin.image, "recurrence", _LAUNCH, device)


@remember
def _status(device: int) -> ctypes.Array:
    """Two words that kernels of ``device`` write and the host reads, at `_STALLED` and `_LENGTH`."""
    pinned = torch.zeros(2, dtype=torch.int32, pin_memory=True)
    words = (ctypes.c_int * 2).from_address(pinned.data_ptr())
    words.owner = pinned  # type: ignore[attr-defined]
    return words


def _raise_stalled(device: int) -> None:
    status = _status(device)
    if status[_STALLED]:
        status[_STALLED] = 0
        raise KernelStalledError(
            f"A persistent kernel on cuda:{device} waited more than {wait_limit} s for its other blocks and gave up; "
            "its outputs are NaN. Is the GPU shared, or prnn_ext.persistent.wait_limit too short?"
        )
