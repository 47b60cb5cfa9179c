"""The gradient noise scale: how large a batch may be before its gradient is mostly signal.

For gradients g of batches of size b and their mean G over k of them, B = k b (McCandlish et al. 2018, appendix A.1):

    |G_true|^2 ~ (B |G|^2 - b mean|g|^2) / (B - b)          trace(noise) ~ (mean|g|^2 - |G|^2) / (1/b - 1/B)
    simple noise scale = trace(noise) / |G_true|^2          utterances

Both estimates are unbiased, each is averaged over groups before the ratio is taken. The unit is a micro-batch as it is
trained: its batch norm statistics are its own and its augmentation is on, so both count as noise. The interval is a
jackknife over groups (95 %, normal).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.batch import Batch
from data.datamodule import SpeechDataModule
from data.sampler import TrainingSampler
from models.recognizer import Recognizer


@dataclass(frozen=True)
class NoiseScale:
    """In utterances, with its 95 % interval; None where the groups' mean signal is not above zero: not measurable."""

    noise_scale: float | None
    low: float | None
    high: float | None
    signal: float
    noise: float
    small_batch: int
    big_batch: int
    groups: int


def measure(checkpoint: Path, data: dict[str, Any], groups: int, group_size: int, device: str) -> NoiseScale:
    """At a checkpoint's weights, over `groups` groups of `group_size` micro-batches of the training data.

    `data` holds the data module's arguments. Raises ValueError where the corpus is too small for that.
    """
    recognizer = Recognizer.load_from_checkpoint(checkpoint, map_location=device).train()
    module = SpeechDataModule(**data)
    module.setup("fit")
    size = module.batch_sizes.per_device_batch_size
    if size is None:
        raise ValueError("The noise scale needs micro-batches of equal count; set data.per_device_batch_size.")
    loader = module.train_dataloader()
    assert isinstance(loader.sampler, TrainingSampler)
    # Not the first epoch, which may be sorted by length.
    loader.sampler.set_epoch(1)
    batches = (batch for batch in loader if len(batch) == size)
    pairs = []
    for number in range(groups):
        pair = group(recognizer, list(islice(batches, group_size)), group_size, device)
        if pair is None:
            raise ValueError(
                f"The training data ended in group {number + 1} of {groups} x {group_size} micro-batches of {size}; "
                "take fewer --noise-groups."
            )
        pairs.append(pair)
    return estimate(pairs, size, size * group_size)


def group(recognizer: Recognizer, batches: Sequence[Batch], wanted: int, device: str) -> tuple[float, float] | None:
    """(mean |g|^2, |G|^2) of one group; None where it is not whole."""
    if len(batches) < wanted:
        return None
    parameters = [p for p in recognizer.parameters() if p.requires_grad]
    total: list[Tensor] | None = None
    small = 0.0
    for batch in batches:
        on_device = batch.to(torch.device(device))
        loss = recognizer.losses(on_device).total / len(batch)
        gradients = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True)
        ]
        small += squared_norm(gradients) / wanted
        total = gradients if total is None else [a + g for a, g in zip(total, gradients, strict=True)]
    assert total is not None
    return small, squared_norm(total) / wanted**2


def squared_norm(tensors: Iterable[Tensor]) -> float:
    """Sum of squares over all tensors, in float64."""
    return sum(float(t.double().square().sum()) for t in tensors)


def estimate(pairs: Sequence[tuple[float, float]], small_batch: int, big_batch: int) -> NoiseScale:
    """The noise scale from (mean |g|^2, |G|^2) pairs. Raises ValueError unless the big batch is bigger."""
    if big_batch <= small_batch:
        raise ValueError(f"A big batch of {big_batch} is not above the small one of {small_batch}.")
    parts = [
        (
            (big_batch * big - small_batch * small) / (big_batch - small_batch),
            (small - big) / (1 / small_batch - 1 / big_batch),
        )
        for small, big in pairs
    ]
    count = len(parts)
    signal, noise = (sum(column) / count for column in zip(*parts, strict=True))
    scale = noise / signal if signal > 0 else None
    low = high = None
    if scale is not None and count > 2:
        left_out = [(noise * count - n) / (signal * count - s) if signal * count > s else math.inf for s, n in parts]
        centre = sum(left_out) / count
        error = math.sqrt((count - 1) / count * sum((one - centre) ** 2 for one in left_out))
        if math.isfinite(error):
            low, high = max(0.0, scale - 1.96 * error), scale + 1.96 * error
    return NoiseScale(scale, low, high, signal, noise, small_batch, big_batch, count)
