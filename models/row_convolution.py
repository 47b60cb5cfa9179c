"""The row (lookahead) convolution: a forward-only network's glimpse of the future (Amodei et al., 2016, section 3.7).

    y_t = sum_{j=0..J} w_j * h_{t+j}        w [J+1,H], one filter a channel

It starts as the identity (w_0 = 1, the rest 0), has no batch norm and no activation. h is zero past each length, so
what lies beyond an utterance's end says nothing and y is zero there too. Where the convolutions stand and how 40 future
frames (800 ms of 20 ms) are shared out among them is decided by `row_convolution_plan`.
"""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

RowConvolutionPlacement = Literal["per_module", "ten", "none"]


class RowConvolution(nn.Module):
    """Sees `future_frames` frames ahead; 0 leaves a gain per channel."""

    def __init__(self, hidden_size: int, future_frames: int) -> None:
        super().__init__()
        weight = torch.zeros(future_frames + 1, hidden_size)
        weight[0] = 1.0
        self.weight = nn.Parameter(weight)

    def forward(self, h: Float[Tensor, "T B H"]) -> Float[Tensor, "T B H"]:
        """Time-major, zero past each length in, zero past each length out."""
        return _Lookahead.apply(h, self.weight.to(h.dtype))


class _Lookahead(torch.autograd.Function):
    """Saves h and w: the shifted products would otherwise cost J tensors of h's size."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        y = h * weight[0]
        for j in range(1, min(len(weight), len(h))):
            y[:-j].addcmul_(h[j:], weight[j])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, weight = ctx.saved_tensors
        grad_h = grad * weight[0]
        grad_weight = torch.zeros_like(weight)
        grad_weight[0] = (grad * h).sum((0, 1))
        for j in range(1, min(len(weight), len(h))):
            grad_h[j:].addcmul_(grad[:-j], weight[j])
            grad_weight[j] = (grad[:-j] * h[j:]).sum((0, 1))
        return grad_h, grad_weight


def row_convolution_plan(
    num_layers: int, module_layers: int, placement: RowConvolutionPlacement, future_frames: int = 40
) -> dict[int, list[int]]:
    """{after layer (1-based): future frames of each row convolution there}.

    `per_module`: after each full module of `module_layers` layers. `ten`: ten of them, after layers round(i L / 10),
    halves up and never before layer 1, so several share a layer when L < 10. The frames are split as evenly as integers
    allow; some may get none.
    """
    if placement not in get_args(RowConvolutionPlacement):
        allowed = ", ".join(get_args(RowConvolutionPlacement))
        raise ValueError(f"row_convolution {placement!r} was given; it is one of {allowed}.")
    if placement == "none":
        return {}
    if placement == "ten":
        layers = [max(1, (2 * i * num_layers + 10) // 20) for i in range(1, 11)]
    else:
        layers = list(range(module_layers, num_layers + 1, module_layers))
    plan: dict[int, list[int]] = {}
    for i, layer in enumerate(layers):
        share = (i + 1) * future_frames // len(layers) - i * future_frames // len(layers)
        plan.setdefault(layer, []).append(share)
    return plan
