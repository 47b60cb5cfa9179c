"""``torch.ops.prnn_ext.rnn``: schema, shapes, autograd; and `rnn`, its public door.

    h_t = f(scale * x_t + shift + h_{t-1} weight_hh^T),   h_{-1} = h_0

Two ops are registered: ``rnn`` (output, h_n) and ``rnn_backward`` (delta, grad_h_0), the sequential halves. Autograd
saves output and weight_hh, h_0 and lengths where given, x where scale needs a gradient, scale where x does, and
recomputes nothing sequential. Double backward raises: differentiate `prnn_ext.reference.equations` instead.

Precision: x, weight_hh, h_0, output and h_n share one dtype; products accumulate in float32 (float64 for float64);
scale and shift are used in float32 or better whatever their dtype, and their gradients summed so.

Nothing here reads a device value, so calls can be captured in a CUDA graph: lengths are clamped to 0..T, never checked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prnn_ext import gradients, planning, reference
from prnn_ext.arguments import check_arguments, check_tensors

_library = torch.library.Library("prnn_ext", "DEF")
_library.define(
    "rnn(Tensor x, Tensor weight_hh, Tensor? h_0=None, Tensor? lengths=None, Tensor? scale=None, Tensor? shift=None, "
    "str activation='clipped_relu', bool reverse=False, str backend='auto') -> (Tensor output, Tensor h_n)"
)
_library.define(
    "rnn_backward(Tensor grad_output, Tensor grad_h_n, Tensor output, Tensor weight_hh, Tensor? h_0, Tensor? lengths, "
    "str activation, bool reverse, str backend) -> (Tensor delta, Tensor grad_h_0)"
)


def rnn(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str = "clipped_relu",
    reverse: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over all time steps; differentiable once in x, weight_hh, h_0, scale and shift.

    Args:
        x: input term [T, B, H] (time, mini-batch, hidden), usually ``W x`` of a whole sequence in one GEMM.
        weight_hh: recurrent weights [H, H], as in `torch.nn.RNN`.
        h_0: initial state [B, H]; zero if None.
        lengths: integers [B] (int32 spares a copy) on x's device, in frames, clamped to 0..T; all T if None.
        scale, shift: [H], for a batch norm folded into the recurrence; 1 and 0 if None. Used in float32 or better.
        activation: ``"clipped_relu"`` (min(max(v, 0), 20)), ``"relu"`` or ``"tanh"``.
        reverse: time runs from length-1 to 0; outputs stay in place and h_n is the state after frame 0.
        backend: ``"auto"`` (see `prnn_ext.plan` for what it chooses), ``"persistent"``, ``"cudnn"``, ``"reference"``.

    Returns:
        output [T, B, H], zero past each length, and h_n [B, H], the state at each length's end (h_0 for length 0).

    x, weight_hh and h_0 share a dtype; under autocast they are cast to autocast's dtype first (float64 is not).
    Arguments that are not contiguous are copied. NaN and infinity travel as in the equations. A size of zero is legal
    everywhere. Forward-mode tangents (`torch.func.jvp`) are not defined and come out as zero or None: take
    `prnn_ext.reference.equations` there.

    Raises ``ValueError`` for shapes, dtypes, devices or names that do not fit, and `prnn_ext.BackendUnavailableError`
    (a ``ValueError`` too) where the backend asked for cannot run.
    """
    check_tensors(x=x, weight_hh=weight_hh, h_0=h_0, lengths=lengths, scale=scale, shift=shift)
    device_type = x.device.type
    if device_type != "meta" and torch.is_autocast_enabled(device_type):  # asking about meta raises
        dtype = torch.get_autocast_dtype(device_type)
        x, weight_hh = _cast(x, dtype), _cast(weight_hh, dtype)
        h_0 = None if h_0 is None else _cast(h_0, dtype)
    if backend == "cudnn":
        from prnn_ext import cudnn

        check_arguments(x, weight_hh, h_0, lengths, scale, shift, activation)
        return cudnn.rnn(x, weight_hh, h_0, lengths, scale, shift, activation, reverse)
    return torch.ops.prnn_ext.rnn.default(x, weight_hh, h_0, lengths, scale, shift, activation, reverse, backend)


def _forward(
    x,
    weight_hh,
    h_0=None,
    lengths=None,
    scale=None,
    shift=None,
    activation="clipped_relu",
    reverse=False,
    backend="auto",
):
    check_arguments(x, weight_hh, h_0, lengths, scale, shift, activation)
    x, weight_hh, h_0, lengths = _dense(x), _dense(weight_hh), _dense(h_0), _int32(lengths, x.shape[0])
    scale, shift = _folded(scale, x), _folded(shift, x)
    run = _backend(x, weight_hh, h_0, lengths, activation, reverse, backend)
    return run.forward(x, weight_hh, h_0, lengths, scale, shift, activation, reverse)


def _backward(grad_output, grad_h_n, output, weight_hh, h_0, lengths, activation, reverse, backend):
    grad_output, grad_h_n = _dense(grad_output), _dense(grad_h_n)
    weight_hh, h_0, lengths = _dense(weight_hh), _dense(h_0), _int32(lengths, output.shape[0])
    run = _backend(output, weight_hh, h_0, lengths, activation, reverse, backend)
    return run.backward(grad_output, grad_h_n, output, weight_hh, h_0, lengths, activation, reverse)


def _backend(x, weight_hh, h_0, lengths, activation, reverse, backend):
    """The module that runs the sequential part."""
    if backend == "reference" or (backend == "auto" and x.device.type != "cuda"):
        return reference
    if backend == "cudnn":
        raise planning.BackendUnavailableError(
            "torch.ops.prnn_ext.rnn does not run backend='cudnn', whose autograd is PyTorch's; call prnn_ext.rnn."
        )
    arguments = {"activation": activation, "reverse": reverse, "backend": backend}
    if planning.choose(x, weight_hh, h_0, lengths, **arguments) == "reference":
        return reference
    from prnn_ext import persistent

    return persistent


def _forward_fake(
    x,
    weight_hh,
    h_0=None,
    lengths=None,
    scale=None,
    shift=None,
    activation="clipped_relu",
    reverse=False,
    backend="auto",
):
    check_arguments(x, weight_hh, h_0, lengths, scale, shift, activation)
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape[1:])


def _backward_fake(grad_output, grad_h_n, output, weight_hh, h_0, lengths, activation, reverse, backend):
    return torch.empty_like(output), output.new_empty(output.shape[1:])


def _save(ctx, inputs, output):
    x, weight_hh, h_0, lengths, scale, shift, activation, reverse, backend = inputs
    needs_x, _, _, _, needs_scale, _ = _needs(ctx)
    ctx.save_for_backward(output[0], weight_hh, h_0, lengths, x if needs_scale else None, scale if needs_x else None)
    ctx.arguments = activation, reverse, backend
    ctx.dtypes = scale.dtype if scale is not None else None, shift.dtype if shift is not None else None


def _differentiate(ctx, grad_output, grad_h_n):
    output, weight_hh, h_0, lengths, x, scale = ctx.saved_tensors
    activation, reverse, backend = ctx.arguments
    scale_dtype, shift_dtype = ctx.dtypes
    needs_x, needs_weight, needs_h_0, _, needs_scale, needs_shift = _needs(ctx)
    delta, grad_h_0 = torch.ops.prnn_ext.rnn_backward.default(
        grad_output, grad_h_n, output, weight_hh, h_0, lengths, activation, reverse, backend
    )
    return (
        gradients.input_gradient(delta, _folded(scale, delta)) if needs_x else None,
        gradients.weight_gradient(delta, output, h_0, lengths, reverse) if needs_weight else None,
        grad_h_0 if needs_h_0 else None,
        None,
        gradients.scale_gradient(delta, x, lengths).to(scale_dtype) if needs_scale else None,
        gradients.shift_gradient(delta).to(shift_dtype) if needs_shift else None,
        None,
        None,
        None,
    )


def _needs(ctx: Any) -> list[bool]:
    """Whether x, weight_hh, h_0, lengths, scale, shift need gradients; the dispatcher leaves trailing defaults out."""
    return [*ctx.needs_input_grad, *[False] * 6][:6]


def _refuse_save(ctx, inputs, output):
    pass


def _refuse(ctx, *grads):
    raise RuntimeError(
        "prnn_ext.rnn can be differentiated once; for second derivatives use prnn_ext.reference.equations, "
        "which takes the same arguments."
    )


for _name, _run, _fake in (("rnn", _forward, _forward_fake), ("rnn_backward", _backward, _backward_fake)):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"prnn_ext::{_name}", _fake, lib=_library)
torch.library.register_autograd("prnn_ext::rnn", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("prnn_ext::rnn_backward", _refuse, setup_context=_refuse_save, lib=_library)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Autocast's own rule: float32 and below are cast, float64 is left alone."""
    return tensor if tensor.dtype in (dtype, torch.float64) else tensor.to(dtype)


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _int32(lengths: Tensor | None, T: int) -> Tensor | None:
    """lengths as backends take them. Those out of 0..T stay so, for the backend to clamp and report."""
    if lengths is None or lengths.dtype == torch.int32:
        return _dense(lengths)
    return lengths.to(torch.int64).clamp(-1, T + 1).to(torch.int32).contiguous()


def _folded(value: Tensor | None, x: Tensor) -> Tensor | None:
    """scale or shift in the dtype in which it is used."""
    return (
        None if value is None else value.to(torch.float64 if x.dtype == torch.float64 else torch.float32).contiguous()
    )
