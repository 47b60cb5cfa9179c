"""Is one depth better than another on this test set, or was it luck with the utterances? A paired bootstrap.

The test utterances are drawn again with replacement, the same draw for both sides, errors and words are summed over the
draw and over a side's seeds, and the difference of the word error rates is noted; 95 % of the differences lie between
the bounds given here. It speaks of the utterances, not of the seeds. (Bisani and Ney, "Bootstrap estimates for
confidence intervals in ASR performance evaluation", ICASSP 2004.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Errors = Mapping[str, tuple[int, int]]
DRAWS = 2_000
# Keeps the counts of a test set of 100,000 utterances below 100 MB.
DRAWS_AT_ONCE = 100


@dataclass(frozen=True)
class Difference:
    """WER of a side less WER of the other, as fractions: the observed one and its 95 % bounds."""

    observed: float
    low: float
    high: float
    utterances: int


def paired_difference(ours: Sequence[Errors], theirs: Sequence[Errors], draws: int = DRAWS) -> Difference | None:
    """Difference between two sides of one or more seeds each, over the utterances that all of them were tested on.

    None where there is no such utterance, or no word in them. The draws are the same for the same number of utterances.
    """
    shared = sorted(set.intersection(*(set(one) for one in (*ours, *theirs)))) if ours and theirs else []
    if not shared:
        return None
    left, right = _summed(ours, shared), _summed(theirs, shared)
    if not left[:, 1].sum() or not right[:, 1].sum():
        return None
    random = np.random.default_rng(0)
    chance = np.full(len(shared), 1 / len(shared))
    differences = []
    for start in range(0, draws, DRAWS_AT_ONCE):
        counts = random.multinomial(len(shared), chance, size=min(DRAWS_AT_ONCE, draws - start))
        differences.append(_rate(counts @ left) - _rate(counts @ right))
    low, high = np.quantile(np.concatenate(differences), (0.025, 0.975))
    observed = _rate(left.sum(0, keepdims=True)) - _rate(right.sum(0, keepdims=True))
    return Difference(float(observed[0]), float(low), float(high), len(shared))


def _summed(side: Sequence[Errors], shared: Sequence[str]) -> np.ndarray:
    """[utterances, 2]: errors and words, summed over the side's seeds."""
    return np.array([[one[name] for name in shared] for one in side], np.float64).sum(0)


def _rate(sums: np.ndarray) -> np.ndarray:
    return sums[:, 0] / np.maximum(sums[:, 1], 1)
