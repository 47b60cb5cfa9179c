"""Batch norm over the valid frames of a batch of sequences.

    mean = sum_{valid} x / n,  var = sum_{valid} (x - mean)^2 / n,  y = x * scale + shift,
    scale = weight / sqrt(var + eps),  shift = bias - mean * scale

Padding takes part in nothing: with 0, 7 or 100 frames more of it, statistics, outputs and gradients are the same.
Statistics are float32 under any precision. `fold` hands out scale and shift alone, for the recurrence to apply as it
loads x_t; `forward` applies them. With `synchronised` the statistics are those of all ranks together (one all-gather
forward, one all-reduce backward), and a rank whose utterances all have length 0 joins with n = 0. At evaluation the
running statistics are used (their variance is unbiased, as in torch).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.float32_buffers import keep_buffers_float32


class Moments(NamedTuple):
    """What a batch says of a norm's channels: mean and biased variance [2,channels], valid entries a channel []."""

    values: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count


class SequenceBatchNorm(nn.Module):
    """Masked batch norm of `channels` channels, which lie along axis `channel_axis` of the input."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        channels: int,
        channel_axis: int = -1,
        synchronised: bool = False,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.channel_axis = channel_axis
        self.synchronised = synchronised
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def fold(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift, float32 [channels], with gradients; in training also moves the running statistics.

        `mask` is 1 in valid frames, 0 in padding, and broadcasts against x.
        """
        if self.training:
            mean, var, count = _MaskedMoments.apply(x, mask, self.channel_axis % x.ndim, self.synchronised)
            track([self], [Moments(torch.stack([mean, var]).detach(), count)])
        else:
            mean, var = self.running_mean, self.running_var
        scale = self.weight.float() * torch.rsqrt(var + self.eps)
        return scale, self.bias.float() - mean * scale

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The normalised input, in x's precision; padding frames hold no meaning."""
        scale, shift = self.fold(x, mask)
        shape = [1] * x.ndim
        shape[self.channel_axis] = -1
        return torch.addcmul(shift.to(x.dtype).view(shape), x, scale.to(x.dtype).view(shape))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SequenceBatchNorm":
        # Steps of 0.1 * difference vanish in bfloat16: running statistics stay float32.
        return keep_buffers_float32(self, super()._apply, fn, recurse)


@torch.no_grad()
def track(norms: Sequence[SequenceBatchNorm], seen: Sequence[Moments]) -> None:
    """Move the running statistics of `norms`, all of one width and momentum, by a batch's; a dozen launches in all."""
    if not norms:
        return
    count = torch.stack([moments.count for moments in seen])
    new = torch.stack([moments.values for moments in seen], dim=1)
    new[1] *= (count / (count - 1).clamp(min=1))[:, None]
    # One diverged step must not poison evaluation for good, and an empty batch has nothing to say.
    usable = (count > 0) & torch.isfinite(new).all(dim=-1).all(dim=0)
    buffers = [norm.running_mean for norm in norms] + [norm.running_var for norm in norms]
    old = torch.stack(buffers).view_as(new)
    moved = torch.where(usable[:, None], torch.lerp(old, new.to(old.dtype), norms[0].momentum), old)
    torch._foreach_copy_(buffers, list(moved.flatten(0, 1).unbind()))


class _MaskedMoments(torch.autograd.Function):
    """Mean, biased variance and count of the valid entries. Saves x itself and nothing of its size besides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, axis: int, synchronised: bool) -> tuple[Tensor, Tensor, Tensor]:
        reduced = [i for i in range(x.ndim) if i != axis]
        shape = [1] * x.ndim
        shape[axis] = -1
        repeats = x.numel() // max(1, x.shape[axis] * mask.numel())
        count = mask.sum(dtype=torch.float32) * repeats
        values = x.float()
        mean = (values * mask).sum(reduced) / count.clamp(min=1)
        spread = ((values - mean.view(shape)) * mask).square().sum(reduced)
        ctx.synchronised = synchronised and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if ctx.synchronised:
            mean, spread, count = pooled(mean, spread, count)
        count = count.clamp(min=0)
        var = spread / count.clamp(min=1)
        ctx.save_for_backward(x, mask, mean, count)
        ctx.shape = shape
        ctx.mark_non_differentiable(count)
        return mean, var, count

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_var: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        x, mask, mean, count = ctx.saved_tensors
        if ctx.synchronised:
            both = torch.stack([grad_mean, grad_var])
            dist.all_reduce(both)
            grad_mean, grad_var = both.unbind()
        slope = 2 * grad_var / count.clamp(min=1)
        offset = grad_mean / count.clamp(min=1) - slope * mean
        grad = torch.addcmul(offset.view(ctx.shape), x.float(), slope.view(ctx.shape)).mul_(mask)
        return grad.to(x.dtype), None, None, None


def pooled(mean: Tensor, spread: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ranks' means, sums of squared deviations and counts as one corpus's (Chan, Golub and LeVeque, 1979)."""
    own = torch.cat([mean, spread, count[None]])
    # Not all_gather_into_tensor: its name and what gloo takes changed between torch 2.11 and 2.14.
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    everyone = torch.stack(rows)
    means, spreads = everyone[:, :-1].chunk(2, dim=1)
    counts = everyone[:, -1:]
    total = counts.sum()
    pooled = (means * counts).sum(0) / total.clamp(min=1)
    return pooled, (spreads + counts * (means - pooled).square()).sum(0), total
