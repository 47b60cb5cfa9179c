"""The recurrence in plain PyTorch: what every faster backend must agree with.

Time runs along the first axis; with ``u = weight_hh`` and ``h_{-1} = h_0``,

    h_t     = f(scale * x_t + shift + h_{t-1} u^T)                                      t = 0 .. length-1
    delta_t = f'(h_t) * (grad_output_t + [grad_h_n at the last step] + delta_{t+1} u)   t = length-1 .. 0

and ``reverse`` runs the first from ``length-1`` to 0 and the second from 0 to ``length-1``, outputs staying in place.
``f'`` is read from the stored ``h``: relu ``h > 0``, clipped relu ``0 < h < 20``, tanh ``1 - h^2``.

Three rungs, each tested against the one below it: `equations` (autograd differentiates it, any number of times),
`forward` and `backward` (hand-derived; the sequential part alone, which `prnn_ext.gradients` completes), and the
kernel. `forward` and `backward` work on buffers made once and call two PyTorch functions a time step, which also makes
them the CPU backend. Storage is the dtype of ``x``; each product accumulates as PyTorch's ``addmm`` does for it.

Legend: T time steps, B mini-batch, H hidden units. Utterance b occupies frames 0 .. lengths[b]-1; rows do not mix, so
what is computed past a length is discarded in one sweep at the end.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from prnn_ext.cpu_product import step_product

ACTIVATIONS = ("clipped_relu", "relu", "tanh")
CLIP = 20.0
"""Where the clipped ReLU saturates (Deep Speech 2, section 3.2)."""


def activate(value: Tensor, activation: str) -> Tensor:
    """``f(value)``, elementwise."""
    if activation == "tanh":
        return torch.tanh(value)
    return F.relu(value) if activation == "relu" else F.hardtanh(value, 0.0, CLIP)


def equations(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str = "clipped_relu",
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """The first rung: one time step per turn, for autograd. Shapes as in `prnn_ext.rnn`; differentiable twice."""
    T, B, H = x.shape
    h = x.new_zeros(B, H) if h_0 is None else h_0
    lengths = torch.full((B,), T, device=x.device) if lengths is None else lengths
    outputs = [x.new_zeros(B, H)] * T
    for t in reversed(range(T)) if reverse else range(T):
        term = x[t] if scale is None else scale * x[t]
        term = term if shift is None else term + shift
        valid = (t < lengths)[:, None]
        # Selected before it is used, so that what lies past a length reaches neither values nor gradients.
        stepped = activate(term.where(valid, 0.0) + h @ weight_hh.T, activation)
        h = stepped.where(valid, h)
        outputs[t] = stepped.where(valid, 0.0)
    return torch.stack(outputs) if T else x.new_zeros(T, B, H), h


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
    """``output [T, B, H]``, zero past each length, and ``h_n [B, H]``.

    ``x`` [T, B, H], ``weight_hh`` [H, H], ``h_0`` [B, H], ``lengths`` integer [B] clamped to 0..T; ``scale`` and
    ``shift`` [H] in float32 or, for float64, float64. The results share no memory with the arguments.
    """
    T, B, H = x.shape
    first = x.new_zeros(B, H) if h_0 is None else h_0
    if T == 0:
        return torch.empty_like(x), first.clone()
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    hidden = output.unbind(0)
    terms = x.unbind(0) if scale is None and shift is None else _input_term(x, scale, shift, output)
    padding = None if lengths is None else _padding(lengths, T)
    product = step_product(weight_hh, B, T)
    h = first
    for t in range(T - 1, -1, -1) if reverse else range(T):
        h_prev, h = h, hidden[t]
        _activate(product(terms[t], h_prev, h), activation, out=h)
        if reverse and padding is not None:
            # Before its last frame is reached an utterance has not started: its state stays h_0.
            torch.where(padding[t], first, h, out=h)
    if lengths is None or padding is None:
        return output, h.clone()
    output.masked_fill_(padding, 0.0)
    if reverse:
        return output, torch.where(padding[0], first, output[0])
    return output, torch.where(padding[0], first, at_last_frame(output, lengths))


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
    """``delta [T, B, H]``, zero past each length, and ``grad_h_0 [B, H]``, from what `forward` returned."""
    T = output.shape[0]
    if T == 0:
        return torch.empty_like(output), grad_h_n.clone()
    delta = torch.empty_like(output)
    deltas, gradients, hidden = delta.unbind(0), grad_output, output.unbind(0)
    padding = None if lengths is None else _padding(lengths, T)
    last = torch.zeros_like(grad_h_n) if padding is None or reverse else grad_h_n
    if lengths is not None and padding is not None:
        gradients = torch.where(padding, 0.0, grad_output)
        if not reverse:
            # Utterances end at frames of their own: each meets grad_h_n there.
            index = _last_frame(lengths, T)[None, :, None].expand_as(gradients[:1])
            gradients.scatter_add_(0, index, torch.where(padding[0], 0.0, last)[None])
    per_step = gradients.unbind(0)
    product = step_product(weight_hh.t(), output.shape[1], T)
    d: Tensor | None = None
    for t in range(T) if reverse else range(T - 1, -1, -1):
        d_next, d = d, deltas[t]
        if d_next is not None:
            grad = product(per_step[t], d_next, d)
        elif padding is None:
            grad = per_step[t] + grad_h_n
        elif reverse:
            grad = per_step[t] + grad_h_n.masked_fill(padding[t], 0.0)
        else:
            grad = per_step[t]
        _derive(grad, hidden[t], activation, out=d)
    if lengths is None or padding is None:
        return delta, deltas[T - 1 if reverse else 0] @ weight_hh
    delta.masked_fill_(padding, 0.0)
    entered = at_last_frame(delta, lengths) if reverse else delta[0]
    return delta, torch.where(padding[0], grad_h_n, entered @ weight_hh)


def at_last_frame(value: Tensor, lengths: Tensor) -> Tensor:
    """[B, H] rows of ``value`` [T, B, H] at each utterance's last frame; at frame 0 for an empty utterance."""
    index = _last_frame(lengths, value.shape[0])[None, :, None].expand(1, *value.shape[1:])
    return value.gather(0, index)[0]


def _input_term(x: Tensor, scale: Tensor | None, shift: Tensor | None, out: Tensor) -> tuple[Tensor, ...]:
    """``scale * x + shift`` for all time steps, into the buffer that the hidden states will overwrite."""
    if scale is None:
        assert shift is not None
        torch.add(x, shift, out=out)
    elif shift is None:
        torch.mul(x, scale, out=out)
    else:
        torch.addcmul(shift, x, scale, out=out)
    return out.unbind(0)


def _activate(value: Tensor, activation: str, out: Tensor) -> None:
    if activation == "tanh":
        torch.tanh(value, out=out)
    else:
        torch.clamp(value, 0.0, None if activation == "relu" else CLIP, out=out)


def _derive(grad: Tensor, h: Tensor, activation: str, out: Tensor) -> None:
    """``out = f' * grad``, with ``f'`` read from ``h = f(.)``."""
    if activation == "tanh":
        torch.ops.aten.tanh_backward.grad_input(grad, h, grad_input=out)
    elif activation == "relu":
        torch.ops.aten.threshold_backward.grad_input(grad, h, 0.0, grad_input=out)
    else:
        torch.ops.aten.hardtanh_backward.grad_input(grad, h, 0.0, CLIP, grad_input=out)


def _padding(lengths: Tensor, T: int) -> Tensor:
    """[T, B, 1], true past each length."""
    return (torch.arange(T, device=lengths.device)[:, None] >= lengths)[:, :, None]


def _last_frame(lengths: Tensor, T: int) -> Tensor:
    return lengths.long().sub(1).clamp_(0, T - 1)
