"""Which utterances CTC can align: those with at least the frames that `data.frames_needed` counts.

What counts are frames at the loss, after padding and every stride; only the model knows them.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data.corpus import Corpus

logger = logging.getLogger(__name__)

OutputLengths = Callable[[Any], Any]  # Int[Tensor, "B"] samples -> Int[Tensor, "B"] frames at the loss


def alignable(
    durations: NDArray[np.float64], needed: NDArray[np.int32], output_lengths: OutputLengths, sample_rate: int
) -> NDArray[np.bool_]:
    """For each row whether its `durations` (seconds) give the frames `needed`."""
    return frames_of(durations, output_lengths, sample_rate) >= needed


def frames_of(durations: NDArray[np.float64], output_lengths: OutputLengths, sample_rate: int) -> NDArray[np.int64]:
    """Frames at the loss of `durations` (seconds)."""
    samples = torch.from_numpy(np.round(durations * sample_rate).astype(np.int64))
    frames: NDArray[np.int64] = output_lengths(samples).cpu().numpy()
    return frames


def unalignable_rows(
    corpus: Corpus,
    needed: NDArray[np.int32],
    output_lengths: OutputLengths,
    *,
    sample_rate: int,
    share_limit: float,
) -> NDArray[np.int32]:
    """The rows to leave out of training, counted and named in a warning.

    Raises ValueError where they are more than `share_limit` of the corpus.
    """
    rows = np.flatnonzero(~alignable(corpus.durations, needed, output_lengths, sample_rate)).astype(np.int32)
    if len(rows):
        share = len(rows) / len(corpus)
        first = [int(row) for row in rows[:3]]
        frames = frames_of(corpus.durations[first], output_lengths, sample_rate)
        such = (
            f"{corpus[row].place}: {len(corpus[row].text)} characters need {needed[row]} frames and {there} are there"
            for row, there in zip(first, frames, strict=True)
        )
        sentence = (
            f"{len(rows)} of {len(corpus)} training utterances "
            f"({corpus.durations[rows].sum() / 3600:.3f} h, {share:.1%})"
            f" have more characters than the model has frames for, such as {'; '.join(such)}"
        )
        if share > share_limit:
            raise ValueError(
                f"{sentence}; above skipped_share_limit={share_limit:g}: lower the frame stride, raise pad_seconds, "
                "mend the texts, or raise the limit."
            )
        logger.warning("%s; they are left out", sentence)
    return rows
