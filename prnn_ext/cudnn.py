"""cuDNN's RNN behind the same equations, for comparison.

cuDNN insists on an input matrix: it is given the identity, so a time step costs it a second product that ours has not
(the throughput study also times it without). scale and shift are applied beforehand. Autograd is PyTorch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prnn_ext import planning


def rnn(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None,
    lengths: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    activation: str,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """As `prnn_ext.rnn`; raises `BackendUnavailableError` where cuDNN's equations or limits differ."""
    planning.choose(x, weight_hh, h_0, lengths, activation=activation, reverse=reverse, backend="cudnn")
    _, B, H = x.shape
    term = x if scale is None else x * scale.to(x.dtype)
    term = term if shift is None else term + shift.to(x.dtype)
    identity = torch.eye(H, dtype=x.dtype, device=x.device)
    first = x.new_zeros(1, B, H) if h_0 is None else h_0[None]
    run = torch.rnn_relu if activation == "relu" else torch.rnn_tanh
    output, h_n = run(
        term.flip(0) if reverse else term,
        first,
        [identity, weight_hh],
        False,
        1,
        0.0,
        torch.is_grad_enabled(),
        False,
        False,
    )
    return output.flip(0) if reverse else output, h_n[0]
