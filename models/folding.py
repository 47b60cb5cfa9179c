"""Batch norm at evaluation is one scale and shift a channel: they go into the weights beside it.

    recurrent layer   W' = scale W (by row),  bias' = shift
    convolution       the same, by output channel
    head              its norm stands before the matrix: W' = W scale (by column),  bias' = bias + W shift

The folded network computes the same numbers up to rounding, with no statistics to read and none to lose. One layer
cannot be folded: where a skip joins before batch norm, the skip is scaled too; such layers keep theirs.
"""

import copy

import torch
from torch import Tensor, nn

from models.batch_norm import SequenceBatchNorm
from models.network import AcousticNetwork
from models.recurrent_layer import RecurrentLayer


@torch.no_grad()
def folded(network: AcousticNetwork) -> AcousticNetwork:
    """A copy for inference, in evaluation mode; the network itself stays as it is."""
    network = copy.deepcopy(network).eval()
    stack = network.stack
    for i, layer in enumerate(stack.layers, start=1):
        assert isinstance(layer, RecurrentLayer)
        scaled_skip = stack.options.skip_placement == "before_batch_norm" and i in stack.spans
        if layer.norm is not None and not scaled_skip:
            scale, shift = _affine(layer.norm)
            layer.weight_ih.mul_(scale[:, None])
            layer.bias = nn.Parameter(shift.to(layer.weight_ih.dtype))
            layer.norm = None
    front_end = network.front_end
    for convolution, norm in zip(front_end.convolutions, front_end.norms, strict=len(front_end.norms) > 0):
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, SequenceBatchNorm)
        scale, shift = _affine(norm)
        convolution.weight.mul_(scale[:, None, None, None])
        convolution.bias = nn.Parameter(shift.to(convolution.weight.dtype))
    front_end.norms = nn.ModuleList()
    head = network.head
    if head.norm is not None:
        scale, shift = _affine(head.norm)
        head.linear.bias.add_(head.linear.weight @ shift.to(head.linear.weight.dtype))
        head.linear.weight.mul_(scale)
        head.norm = None
    return network


def _affine(norm: SequenceBatchNorm) -> tuple[Tensor, Tensor]:
    """Scale and shift of a norm's running statistics."""
    scale = norm.weight.float() * torch.rsqrt(norm.running_var + norm.eps)
    return scale, norm.bias.float() - norm.running_mean * scale
