"""Two convolutions over frequency and time, each with masked batch norm and a clipped ReLU.

    [B,T,F] -> image [B,1,F,T] -> [B,C,F/2,T/2] -> [B,C,F/4,T/2] -> [B,T',C*F']

Kernels and strides are written frequency x time, as in the paper: 41x11 with stride 2x2, then 21x11 with stride 2x1.
Half a kernel of zero padding on every side makes T' = ceil(T / stride). Each convolution reads zeros beyond an
utterance's end, as it would were the utterance alone, because its input is masked there: features by the caller's
lengths, the second input after the shift of batch norm made it non-zero.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from models.batch_norm import SequenceBatchNorm
from models.frames import frame_mask

CLIP = 20.0  # of the clipped ReLU


@dataclass(frozen=True)
class FrontEndOptions:
    """The paper's front-end; 8 channels on 80 mel bins is the one for a CPU."""

    channels: int = 32
    first_kernel: tuple[int, int] = (41, 11)
    """Frequency bins x frames; both odd."""
    first_stride: tuple[int, int] = (2, 2)
    second_kernel: tuple[int, int] = (21, 11)
    second_stride: tuple[int, int] = (2, 1)


class FrontEnd(nn.Module):
    """Features to the stack's input; `output_size` is D = channels x remaining bins, `time_stride` feature frames make
    one frame."""

    def __init__(self, num_bins: int, options: FrontEndOptions, normalization: str = "batch") -> None:
        super().__init__()
        kernels = (options.first_kernel, options.second_kernel)
        strides = (options.first_stride, options.second_stride)
        if (
            options.channels < 1
            or any(k < 1 or k % 2 == 0 for kernel in kernels for k in kernel)
            or min(map(min, strides)) < 1
        ):
            raise ValueError(
                f"front_end: {options.channels} channels, kernels {kernels} and strides {strides} were given; channels "
                "and strides are at least 1 and kernels odd, so that every output frame has a centre."
            )
        batch_norm = normalization != "none"
        convolutions, norms = [], []
        inputs, bins = 1, num_bins
        for kernel, stride in zip(kernels, strides, strict=True):
            if 2 * kernel[0] >= 3 * bins:
                # Most of it would see padding; and oneDNN's backward writes past its memory for 41 on 22 and fewer.
                raise ValueError(
                    f"front_end: a kernel of {kernel[0]} bins was given for an image of {bins}; give one below "
                    f"{1.5 * bins:g}, or more mel_bins."
                )
            padding = (kernel[0] // 2, kernel[1] // 2)
            convolutions.append(nn.Conv2d(inputs, options.channels, kernel, stride, padding, bias=not batch_norm))
            if batch_norm:
                norms.append(
                    SequenceBatchNorm(options.channels, channel_axis=1, synchronised=normalization == "sync_batch")
                )
            inputs, bins = options.channels, (bins - 1) // stride[0] + 1
        self.convolutions = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList(norms)
        self.output_size = inputs * bins
        self.time_strides = tuple(stride[1] for stride in strides)
        self.time_stride = self.time_strides[0] * self.time_strides[1]

    def output_lengths(self, lengths: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Feature frames -> frames of the stack."""
        for stride in self.time_strides:
            lengths = (lengths + stride - 1) // stride
        return lengths

    def forward(
        self, features: Float[Tensor, "B T F"], lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B Tout D"], Int[Tensor, " B"]]:
        """Frames past each length are zero."""
        image = features.transpose(1, 2).contiguous()[:, None]
        for i, (convolution, stride) in enumerate(zip(self.convolutions, self.time_strides, strict=True)):
            image = convolution(image)
            lengths = (lengths + stride - 1) // stride
            mask = frame_mask(lengths, image.shape[-1])[:, None, None, :].float()
            scale = shift = None
            if len(self.norms):
                norm = self.norms[i]
                assert isinstance(norm, SequenceBatchNorm)
                scale, shift = norm.fold(image, mask)
            image = _ClippedAffine.apply(
                image, scale, shift, mask, _layout(image, last=i == len(self.convolutions) - 1)
            )
        # Laid out time-major, so that the stack's view of it is contiguous.
        return _TimeMajor.apply(image).transpose(0, 1), lengths


class _ClippedAffine(torch.autograd.Function):
    """min(max(scale x + shift, 0), 20), zero in the padding, in a memory layout. Saves x, where batch norm keeps it
    anyway, and the result."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, mask: Tensor, layout: torch.memory_format
    ) -> Tensor:
        if scale is None or shift is None:
            y = x.clamp(0.0, CLIP)
        else:
            y = torch.addcmul(_per_channel(shift, x), x, _per_channel(scale, x)).clamp_(0.0, CLIP)
        y = y.mul_(mask.to(y.dtype)).contiguous(memory_format=layout)
        ctx.save_for_backward(y, *(() if scale is None else (x, scale)))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        y, *affine = ctx.saved_tensors
        # The gradient where 0 < y < 20: nowhere in the padding either, where y is 0.
        grad = torch.ops.aten.hardtanh_backward(grad, y, 0.0, CLIP)
        if not affine:
            return grad, None, None, None, None
        x, scale = affine
        # Sums over many thousand frames: in float32.
        by_scale = (grad.float() * x).sum((0, 2, 3))
        return grad * _per_channel(scale, x), by_scale, grad.sum((0, 2, 3), dtype=torch.float32), None, None


def _layout(image: Tensor, last: bool) -> torch.memory_format:
    """How the next convolution's image lies: in 16 bits on CUDA with its channels together.

    Otherwise cuDNN takes 54 ms instead of 0.3 ms for the gradient of the paper's second image at mini-batch 4 (H200,
    bfloat16; tests/gpu/convolution_probe.py). The first image has one channel, and is faster as it comes.
    """
    together = image.is_cuda and image.dtype != torch.float32 and not last
    return torch.channels_last if together else torch.contiguous_format


def _per_channel(values: Tensor, image: Tensor) -> Tensor:
    return values.to(image.dtype)[:, None, None]


class _TimeMajor(torch.autograd.Function):
    """[B,C,F,T] -> [T,B,C*F], contiguous both ways: a convolution's backward is 3 times slower on a permuted
    gradient."""

    @staticmethod
    def forward(ctx: Any, image: Tensor) -> Tensor:
        ctx.shape = image.shape
        return image.permute(3, 0, 1, 2).flatten(2).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        B, C, bins, T = ctx.shape
        return grad.view(T, B, C, bins).permute(1, 2, 3, 0).contiguous()
