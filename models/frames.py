"""Which frames of a padded batch are speech.

Legend: `B` batch, `T` frames. A batch is rectangular, utterances are not: frames at and beyond an utterance's length
are padding and must never speak. Lengths are integers in the unit of the stage that owns them; a length of zero marks
an utterance that takes no part.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def frame_mask(lengths: Int[Tensor, " B"], frames: int) -> Bool[Tensor, "B {frames}"]:
    """True where a frame lies inside its utterance."""
    return torch.arange(frames, device=lengths.device) < lengths[:, None]


class Frames(NamedTuple):
    """The valid frames of a time-major batch, computed once and read by every layer of the stack."""

    lengths: Int[Tensor, " B"]  # int32, as the recurrence wants them
    mask: Float[Tensor, "T B 1"]  # 1 inside, 0 in the padding; float32
    count: Float[Tensor, ""]  # type: ignore[assignment]  # valid frames of the batch; float32, on the device

    @classmethod
    def of(cls, lengths: Int[Tensor, " B"], frames: int) -> "Frames":
        """The valid frames of a batch `frames` long."""
        mask = frame_mask(lengths, frames).t()[:, :, None].float().contiguous()
        return cls(lengths.to(torch.int32), mask, mask.sum())
