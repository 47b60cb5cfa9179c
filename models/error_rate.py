"""Word and character error rate of a data set: total edits over total reference length.

Errors are counted per utterance as integers and divided once, at the end: an utterance of one word weighs one word, and
an empty reference counts what was inserted. Ranks exchange their utterances by id, so each counts once however the
sampler shared or repeated them.
"""

from dataclasses import dataclass, field

import numpy as np
import torch.distributed as dist
from rapidfuzz.distance import Levenshtein


@dataclass(frozen=True)
class ErrorCounts:
    """Sums over a data set. `wer` and `cer` are fractions; with no reference word at all, errors count as if there were
    one."""

    errors: int = 0
    words: int = 0
    character_errors: int = 0
    characters: int = 0
    utterances: int = 0
    by_utterance: dict[str, tuple[int, int]] = field(default_factory=dict)
    """{utterance id: (word errors, words)}: what a paired comparison of two models needs."""

    @property
    def wer(self) -> float:
        return self.errors / max(1, self.words)

    @property
    def cer(self) -> float:
        return self.character_errors / max(1, self.characters)


@dataclass
class ErrorRate:
    """Counts of the utterances seen since the last `clear`."""

    seen: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)

    def update(self, utterance_id: str, hypothesis: str, reference: str) -> None:
        """Count one utterance; a second time for the same id replaces the first."""
        heard, said = hypothesis.split(), reference.split()
        reference, hypothesis = " ".join(said), " ".join(heard)
        self.seen[utterance_id] = (
            Levenshtein.distance(heard, said),
            len(said),
            Levenshtein.distance(hypothesis, reference),
            len(reference),
        )

    def compute(self) -> ErrorCounts:
        """The counts over all ranks; every rank must call it."""
        seen = self.seen
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            ranks: list[dict[str, tuple[int, int, int, int]]] = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(ranks, self.seen)
            seen = {name: counts for rank in ranks for name, counts in rank.items()}
        errors, words, character_errors, characters = (
            np.array([*seen.values()], np.int64).reshape(-1, 4).sum(0).tolist()
        )
        by_utterance = {name: counts[:2] for name, counts in seen.items()}
        return ErrorCounts(errors, words, character_errors, characters, len(seen), by_utterance)

    def clear(self) -> None:
        """Forget everything."""
        self.seen.clear()
