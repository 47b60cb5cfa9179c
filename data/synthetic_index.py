"""An index of millions of utterances that do not exist, to measure what an index costs.

Lengths are like LibriSpeech's (a quarter spread over 1.5 to 12 s, the rest about 14.3 s), so 6,000,000 rows are about
20,000 h; texts are sentences of the embedded lexicon, 14 characters a second; shards hold 10,000 utterances.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data.frames_needed import frames_needed
from data.index_writer import save
from data.sentences import sentence
from data.text import Normalizer

POOL = 2000  # different texts
ROWS_PER_SHARD = 10_000


def librispeech_like(rows: int, seed: int = 0) -> NDArray[np.float64]:
    """Durations in seconds."""
    random = np.random.default_rng(seed)
    short = random.uniform(1.5, 12, rows)
    usual = random.normal(14.3, 1.1, rows)
    return np.where(random.random(rows) < 0.25, short, usual).clip(1.4, 24.5)


def write_synthetic_index(path: Path, rows: int, seed: int = 0) -> int:
    """Write the index; returns its number of rows."""
    random = np.random.default_rng(seed)
    durations = librispeech_like(rows, seed)
    texts = _texts(random)
    lengths = np.array([len(text) for text in texts])
    by_length = np.argsort(lengths)
    chosen = by_length[np.searchsorted(lengths[by_length], (14 * durations).astype(int)).clip(0, POOL - 1)]
    table = pa.table(
        {
            "row": pa.array(_rows(durations), pa.large_string()),
            "text": pa.array(texts, pa.large_string()).take(pa.array(chosen)),
            "duration": pa.array(durations, pa.float64()),
            "key": pa.array(random.permutation(np.arange(rows, dtype=np.uint64) * np.uint64(2**40 + 1)), pa.uint64()),
            "frames_needed": pa.array(np.array([frames_needed(text) for text in texts])[chosen], pa.int32()),
        }
    )
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    examples = {character: next(text for text in texts if character in text) for character in characters}
    return save(path, table.combine_chunks(), Normalizer(), characters, examples)


def _rows(durations: NDArray[np.float64]) -> Iterator[str]:
    for i, size in enumerate((durations * 16_000).astype(int).tolist()):  # bytes of FLAC: about one a sample
        shard, place = divmod(i, ROWS_PER_SHARD)
        path = f"s3://corpus/shard-{shard:05d}.tar"
        yield f'["utterance-{i:07d}", "{path}", "speaker-{i % 5000:04d}", 0.0, false, {250_000 * place}, {size}]'


def _texts(random: np.random.Generator) -> list[str]:
    """Texts of all lengths up to 350 characters."""
    texts = []
    for i in range(POOL):
        text = sentence(random)
        while len(text) < i * 350 // POOL:
            text += " and " + sentence(random)
        texts.append(text[: max(10, i * 350 // POOL)].strip())
    return texts
