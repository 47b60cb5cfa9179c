"""A corpus as columns: what an epoch is planned from, without touching a row, and the rows themselves by number.

Two of them: `ManifestCorpus` holds the rows of manifests in memory, `IndexedCorpus` (data/index.py) reads them from a
memory-mapped file that all workers and ranks of a machine share.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from data.extras import missing_package
from data.frames_needed import frames_needed
from data.manifest import ManifestError, Utterance, read_manifest
from data.speed import key
from data.text import Normalizer
from data.vocabulary import Vocabulary


@runtime_checkable
class Corpus(Protocol):
    """`durations` [rows] float64 seconds; `keys` [rows] uint64, a hash of each id."""

    @property
    def durations(self) -> NDArray[np.float64]:
        """Seconds of each row."""

    @property
    def keys(self) -> NDArray[np.uint64]:
        """A hash of the id of each row."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Utterance: ...

    def complaint(self, vocabulary: Vocabulary, normalizer: Normalizer) -> str:
        """One sentence about characters of the texts outside the vocabulary, empty where there are none."""

    def frames_needed(self, vocabulary: Vocabulary, normalizer: Normalizer) -> NDArray[np.int32]:
        """Frames that CTC needs at least for the text of each row."""


class ManifestCorpus:
    """Utterances in memory. Raises ManifestError for an id that two of them share."""

    def __init__(self, utterances: Sequence[Utterance]) -> None:
        self._utterances = list(utterances)
        self.durations: NDArray[np.float64] = np.array([u.duration for u in utterances], dtype=np.float64)
        self.keys: NDArray[np.uint64] = np.array([key(u.id) for u in utterances], dtype=np.uint64)
        if len({u.id for u in utterances}) < len(utterances):
            seen: dict[str, str] = {}
            for u in utterances:
                if u.id in seen:
                    raise ManifestError(
                        f"{u.place}: the id {u.id!r} is that of {seen[u.id]} too; give each utterance its own."
                    )
                seen[u.id] = u.place

    def __len__(self) -> int:
        return len(self._utterances)

    def __getitem__(self, row: int) -> Utterance:
        return self._utterances[row]

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self._utterances)

    def complaint(self, vocabulary: Vocabulary, normalizer: Normalizer) -> str:
        """See Corpus."""
        texts = (normalizer(u.text) for u in self._utterances)
        return vocabulary.complaint(texts, lambda row: self._utterances[row].place)

    def frames_needed(self, vocabulary: Vocabulary, normalizer: Normalizer) -> NDArray[np.int32]:
        """See Corpus."""
        return np.fromiter((frames_needed(vocabulary.encode(normalizer(u.text))) for u in self._utterances), np.int32)


def read_corpus(paths: str | Path | Iterable[str | Path]) -> Corpus:
    """The corpus of one manifest or of several together, or of one index (`*.arrow`)."""
    several = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not several:
        raise ManifestError("The list of manifests is empty; name one, or say null where the split is not used.")
    if any(path.suffix == ".arrow" for path in several):
        try:
            from data.index import IndexedCorpus  # pyarrow is an extra
        except ModuleNotFoundError as error:
            raise ManifestError(f"{several[0]}: {missing_package(error)}") from error

        if len(several) > 1:
            raise ManifestError(f"{several[0]}: an index cannot be joined with others; index all manifests together.")
        return IndexedCorpus(several[0])
    if twice := [path for number, path in enumerate(several) if path in several[:number]]:
        raise ManifestError(f"{twice[0]}: the manifest is named twice; name it once.")
    return ManifestCorpus([utterance for path in several for utterance in read_manifest(path)])
