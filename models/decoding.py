"""Greedy CTC decoding: the best token of each frame, runs merged, blanks dropped; with the time of each character and
word.

A character begins with the first frame of its run and ends with the last. CTC's peaks are sharp, so these are times of
emission: good to about a syllable, not phone boundaries. Frames past an utterance's length are never looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from models.ctc import BLANK


@dataclass(frozen=True)
class Span:
    """A character or word and when it was heard: seconds from the start of the utterance's audio."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Hypothesis:
    """What was heard in one utterance. `score` is the sum of the best tokens' log-probabilities, in nats."""

    text: str
    characters: list[Span]
    words: list[Span]
    score: float


def greedy(
    log_probs: Float[Tensor, "B T V"],
    lengths: Int[Tensor, " B"],
    characters: Sequence[str],
    seconds_per_frame: float = 1.0,
    lead_seconds: float = 0.0,
    audio_seconds: Sequence[float] | None = None,
) -> list[Hypothesis]:
    """One hypothesis an utterance, in the order given. Token i + 1 is `characters[i]`, a character or a sub-word.

    `lead_seconds` is the padding before the audio. What is heard in the padding counts as heard at the audio's edge;
    `audio_seconds` says where each utterance's ends.
    """
    scores, tokens = log_probs.max(-1)
    best, heights, ends = tokens.cpu().numpy(), scores.cpu().numpy(), lengths.cpu().tolist()
    return [
        _hypothesis(
            best[b, :end],
            float(heights[b, :end].sum()),
            characters,
            seconds_per_frame,
            lead_seconds,
            math.inf if audio_seconds is None else audio_seconds[b],
        )
        for b, end in enumerate(ends)
    ]


def _hypothesis(
    tokens: np.ndarray,
    score: float,
    characters: Sequence[str],
    seconds_per_frame: float,
    lead_seconds: float,
    audio_seconds: float,
) -> Hypothesis:
    def at(edge: int) -> float:
        return min(max(0.0, edge * seconds_per_frame - lead_seconds), audio_seconds)

    first = np.flatnonzero(np.diff(tokens, prepend=-1))
    last = np.append(first, len(tokens))[1:]
    spoken = [
        Span(characters[token - 1], at(begin), at(end))
        for token, begin, end in zip(tokens[first].tolist(), first.tolist(), last.tolist(), strict=True)
        if token != BLANK
    ]
    words: list[Span] = []
    inside = False
    for span in spoken:
        for i, part in enumerate(span.text.split(" ")):
            inside = inside and i == 0  # what follows a space begins a word
            if part and inside:
                words[-1] = Span(words[-1].text + part, words[-1].start, span.end)
            elif part:
                words.append(Span(part, span.start, span.end))
                inside = True
    # One space between words and none at the ends, whatever the network emitted.
    return Hypothesis(" ".join(word.text for word in words), spoken, words, score)
