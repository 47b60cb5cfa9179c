"""One forward-only simple RNN layer with batch norm on its input term.

    z = x W^T,  h_t = f(scale * z_t + shift + U h_{t-1}),  (scale, shift) folded from BN's statistics of z over valid
    frames

The normalised input is never made: the recurrence applies scale and shift as it loads z_t. In training with batch norm
the layer is one autograd function (`recurrent_function`) that saves x, which the layer below saved already, and h, and
makes z again. At evaluation, without batch norm, and on cuDNN, whose backward is PyTorch's, it is composed of parts.
Where a skip lands inside the layer, see `stack`.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

import prnn_ext
from models.batch_norm import Moments, SequenceBatchNorm, track
from models.frames import Frames
from models.recurrent_function import normalised_recurrence

Activation = Literal["clipped_relu", "relu", "tanh"]
Normalization = Literal["batch", "sync_batch", "none"]
SkipPlacement = Literal["after_activation", "after_batch_norm", "before_batch_norm"]


class RecurrentLayer(nn.Module):
    """W [H,D], U [H,H] and batch norm; without batch norm a bias [H]."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        activation: Activation,
        normalization: Normalization,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        for name, given, allowed in (
            ("activation", activation, Activation),
            ("normalization", normalization, Normalization),
        ):
            if given not in get_args(allowed):
                raise ValueError(f"{name} {given!r} was given; it is one of {', '.join(get_args(allowed))}.")
        self.activation = activation
        self.backend = backend
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if normalization == "none" else None
        self.norm = None
        if normalization != "none":
            self.norm = SequenceBatchNorm(hidden_size, synchronised=normalization == "sync_batch")

    def forward(
        self,
        x: Float[Tensor, "T B D"],
        frames: Frames,
        skip: Float[Tensor, "T B H"] | None = None,
        skip_placement: SkipPlacement = "after_batch_norm",
        seen: list[tuple[SequenceBatchNorm, Moments]] | None = None,
    ) -> Float[Tensor, "T B H"]:
        """h, zero past each length. `skip` joins z before or after batch norm; None adds nothing.

        x and skip must be zero past each length. With `seen`, the batch's statistics are appended to it and the running
        ones left for the caller to move; without, they are moved here.
        """
        if self.norm is not None and self.training and self.backend != "cudnn":
            arguments = (self.weight_ih, self.weight_hh, self.norm, frames, skip)
            h, moments = normalised_recurrence(
                x,
                *arguments,
                before=skip_placement == "before_batch_norm",
                activation=self.activation,
                backend=self.backend,
            )
            if seen is None:
                track([self.norm], [moments])
            else:
                seen.append((self.norm, moments))
            return h
        return self._composed(x, frames, skip, skip_placement)

    def _composed(self, x: Tensor, frames: Frames, skip: Tensor | None, skip_placement: SkipPlacement) -> Tensor:
        z = F.linear(x, self.weight_ih, self.bias)
        if skip is not None and skip_placement == "before_batch_norm":
            z = z + skip
        scale, shift = (None, None) if self.norm is None else self.norm.fold(z, frames.mask)
        if skip is not None and skip_placement == "after_batch_norm":
            if scale is not None and shift is not None:
                z, scale, shift = torch.addcmul(shift.to(z.dtype), z, scale.to(z.dtype)), None, None
            z = z + skip
        h, _ = prnn_ext.rnn(
            z,
            self.weight_hh.to(z.dtype),
            None,
            frames.lengths,
            scale=scale,
            shift=shift,
            activation=self.activation,
            backend=self.backend,
        )
        return h
