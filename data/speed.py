"""Random numbers that belong to an utterance: functions of (seed, epoch, id), whoever reads it and in whatever order.

`keys` are 64-bit hashes of utterance ids; splitmix64 (Steele et al., OOPSLA 2014) turns a key and a seed into a number.
Speed perturbation (Ko et al., Interspeech 2015) resamples the audio, so that duration and pitch change together.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]


def key(utterance_id: str) -> int:
    """The 64-bit key of an id."""
    return int.from_bytes(hashlib.blake2b(utterance_id.encode(), digest_size=8).digest(), "little")


def uniform(keys: Keys, seed: int, epoch: int, stream: int = 0) -> NDArray[np.float64]:
    """One number in [0, 1) a key; `stream` separates draws for different purposes."""
    salt = np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        mixed = _splitmix64(_splitmix64(keys + salt) ^ salt)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: Keys) -> Keys:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class SpeedPerturbation:
    """Speeds of utterances: one of `factors` for each (seed, epoch, key), 1 for the keys in `unchanged` (sorted).

    Unchanged are those that the fastest speed would leave with fewer frames than their text needs.
    Raises ValueError for factors outside 0.5 to 2 and for finer ones than per cents, of which filters would be many.
    """

    factors: tuple[float, ...]
    seed: int = 0
    unchanged: Keys = field(default_factory=lambda: np.zeros(0, np.uint64))

    def __post_init__(self) -> None:
        for factor in self.factors:
            if not 0.5 <= factor <= 2 or abs(round(100 * factor) / 100 - factor) > 1e-9:
                raise ValueError(
                    f"speeds holds {factor}; give factors from 0.5 to 2 in whole per cents, as 0.9, 1.0, 1.1."
                )

    def of(self, keys: Keys, epoch: int) -> NDArray[np.float64]:
        """The speed of each utterance in this epoch."""
        if not self.factors:
            return np.ones(len(keys))
        drawn = (uniform(keys, self.seed, epoch) * len(self.factors)).astype(np.int64)
        chosen: NDArray[np.float64] = np.asarray(self.factors, dtype=np.float64)[drawn]
        if len(self.unchanged):
            chosen[np.isin(keys, self.unchanged)] = 1.0
        return chosen
