"""SpecAugment (Park et al., 2019): bands of frequency and stretches of time set to zero, the mean of normalised
features.

What is masked is a function of (seed, epoch, utterance id) and of nothing else: the same in any batch, on any rank and
after a resume. The draws are made on the host as fractions and become frames on the device, where the lengths are, so
nothing waits for the device.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class SpecAugmentOptions:
    """How much is hidden from the network in training; zero masks of both kinds switch it off."""

    frequency_masks: int = 2
    frequency_width: int = 15
    """Bins, at most."""
    time_masks: int = 2
    time_width: int = 40
    """Feature frames, at most."""
    time_share: float = 0.1
    """Of the utterance, at most, for one mask: short words survive."""
    seed: int = 0


def spec_augment(
    features: Float[Tensor, "B T F"],
    lengths: Int[Tensor, " B"],
    options: SpecAugmentOptions,
    utterance_ids: list[str],
    epoch: int,
) -> Float[Tensor, "B T F"]:
    """The masked features; `lengths` in feature frames."""
    masks = options.frequency_masks + options.time_masks
    if masks == 0:
        return features
    B, T, bins = features.shape
    draws = np.stack(
        [_generator(options.seed, epoch, name).random((2, masks), dtype=np.float32) for name in utterance_ids]
    )
    width_share, start_share = torch.from_numpy(draws).to(features.device, non_blocking=True).unbind(1)

    cut = options.frequency_masks
    width = torch.floor(width_share[:, :cut] * (min(options.frequency_width, bins) + 1))
    hidden = _bands(width, start_share[:, :cut], torch.full_like(width, bins), bins)[:, None, :]
    frames = lengths[:, None].float().expand(B, options.time_masks)
    widest = torch.floor(frames * options.time_share).clamp(max=options.time_width)
    width = torch.floor(width_share[:, cut:] * (widest + 1))
    hidden = hidden | _bands(width, start_share[:, cut:], frames, T)[:, :, None]
    return features.masked_fill(hidden, 0.0)


def _generator(seed: int, epoch: int, utterance_id: str) -> np.random.Generator:
    return np.random.default_rng([seed, epoch, zlib.crc32(utterance_id.encode())])


def _bands(width: Tensor, start_share: Tensor, extent: Tensor, size: int) -> Tensor:
    """[B, size], true inside any band that starts at start_share of what `extent` leaves free."""
    start = torch.floor(start_share * (extent - width + 1))
    place = torch.arange(size, device=width.device)
    return ((place >= start[..., None]) & (place < (start + width)[..., None])).any(1)
