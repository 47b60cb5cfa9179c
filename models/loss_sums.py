"""An epoch's loss: sums over utterances, kept on the device, divided once at the end and over all ranks."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.rank_rows import gather_rows, own_row


class EpochLoss(NamedTuple):
    """Over all ranks: nats an utterance, and the utterances that had too few frames for their transcripts."""

    mean: float
    utterances: int
    skipped: int
    skipped_samples: int


class LossSums:
    """Adds micro-batches up without waiting for the device."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def add(self, total: Float[Tensor, ""], usable: Bool[Tensor, " B"], audio_lengths: Int[Tensor, " B"]) -> None:
        """`total` is the loss summed over the usable utterances."""
        # A loss that is not finite is met by the gradient norm, which drops the step; here it must not hide an epoch's
        # mean.
        finite = torch.isfinite(total)
        sums = torch.stack(
            [
                torch.where(finite, total.detach(), 0.0).double(),
                (usable.sum() * finite).double(),
                (~usable).sum().double(),
                (audio_lengths * ~usable).sum().double(),
            ]
        )
        self._sums = sums if self._sums is None else self._sums.to(sums.device) + sums

    def state(self) -> list[Any]:
        """The sums of all ranks, which must all call it, in plain lists for a checkpoint."""
        return gather_rows(torch.zeros(4, dtype=torch.float64) if self._sums is None else self._sums)

    def load_state(self, state: list[Any]) -> None:
        """Go on from there."""
        self._sums = own_row(state)

    def pool(self, device: torch.device) -> EpochLoss:
        """The sums of all ranks, which must all call it; then starts again from nothing."""
        sums = torch.zeros(4, dtype=torch.float64, device=device) if self._sums is None else self._sums.to(device)
        self._sums = None
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        total, usable, skipped, samples = sums.tolist()
        return EpochLoss(total / max(1.0, usable), int(usable), int(skipped), int(samples))
