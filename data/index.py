"""The index of a large corpus: one Arrow file (IPC, uncompressed), memory-mapped, a column a property.

Opening it reads a few kilobytes, whatever its size. The columns that an epoch is planned from are used in place, and
their pages shared by all ranks of a machine. A row is read by its bytes instead, so that a worker, which wants rows
from all over the file, maps none of it: the kernel maps sixteen pages around each touch, which is a gigabyte after
2,000 rows.

The order of the rows is that of the manifests. Texts are stored normalised; what every run asks of all texts at its
start (which characters there are, the frames that CTC needs) is answered from the file, if the run normalises texts
as the index does and has characters as tokens.

Columns: duration, float64, seconds; key, uint64; frames_needed, int32; text; and row, JSON of what is wanted of a
single row alone: [id, path (relative to the index's folder where it is inside), speaker or null, offset in seconds,
whether it is a segment, first byte and number of bytes inside a shard or null]. One record batch, so that a column is
one array.
"""

import json
import os
import struct
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data.frames_needed import frames_needed
from data.manifest import ManifestError, Utterance
from data.storage import path_of
from data.text import Normalizer
from data.vocabulary import Vocabulary

VERSION = 1
TEXTS_AT_A_TIME = 100_000


class Strings:
    """A string column of an uncompressed Arrow file, read by `pread`: int64 bounds, then the UTF-8 of all.

    `address` is where the mapped file begins in memory: a buffer's distance from it is its place in the file.
    """

    def __init__(self, file: int, address: int, column: Any) -> None:
        self._file = file
        _, bounds, content = column.buffers()
        self._bounds = bounds.address - address
        self._content = content.address - address if content.size else 0

    def __getitem__(self, row: int) -> str:
        first, last = struct.unpack("<qq", os.pread(self._file, 16, self._bounds + 8 * row))
        return os.pread(self._file, last - first, self._content + first).decode()


class IndexedCorpus:
    """A Corpus over an index. In another process it opens the file again, so it is small to send there.

    Raises ManifestError where the file is not an index of this version.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._open()

    def _open(self) -> None:
        try:
            whole = pa.memory_map(str(self._path)).read_buffer()
            table = pa.ipc.open_file(whole).read_all()
            self._facts = json.loads(table.schema.metadata[b"prnn"])
        except (pa.ArrowInvalid, KeyError, TypeError, OSError) as error:
            raise ManifestError(f"{self._path}: not an index ({error}); make it with python -m data index.") from error
        if self._facts["version"] != VERSION:
            raise ManifestError(f"{self._path}: an index of another version; make it again with python -m data index.")
        self._columns = {name: table.column(name).chunk(0) for name in table.column_names}
        file = os.open(self._path, os.O_RDONLY)
        weakref.finalize(self, os.close, file)
        self._row_of = Strings(file, whole.address, self._columns["row"])
        self._text_of = Strings(file, whole.address, self._columns["text"])
        self._duration_of = partial(_number, file, self._columns["duration"].buffers()[1].address - whole.address)
        self.durations: NDArray[np.float64] = self._columns["duration"].to_numpy()
        self.keys: NDArray[np.uint64] = self._columns["key"].to_numpy()

    def __getstate__(self) -> Path:
        return self._path

    def __setstate__(self, path: Path) -> None:
        self._path = path
        self._open()

    def __len__(self) -> int:
        return len(self.durations)

    def __getitem__(self, row: int) -> Utterance:
        identity, path, speaker, offset, segment, start, length = json.loads(self._row_of[row])
        return Utterance(
            path_of(path, self._path.parent),
            self._duration_of(row),
            self._text_of[row],
            identity,
            speaker,
            offset,
            None if start is None else (start, length),
            segment,
            manifest=self._path,
            line=row + 1,
        )

    def complaint(self, vocabulary: Vocabulary, normalizer: Normalizer) -> str:
        """See Corpus."""
        if not self._is_normalised_by(normalizer):
            return vocabulary.complaint(map(normalizer, self._texts()), lambda row: f"{self._path}:{row + 1}")
        facts = self._facts["characters"]
        return vocabulary.complaint_about(
            {c: count for c, (count, _) in facts.items()}, {c: e for c, (_, e) in facts.items()}, self._place_of
        )

    def _place_of(self, character: str) -> str:
        row = next(row for row, text in enumerate(self._texts(), start=1) if character in text)
        return f"{self._path}:{row}"

    def frames_needed(self, vocabulary: Vocabulary, normalizer: Normalizer) -> NDArray[np.int32]:
        """See Corpus."""
        if self._is_normalised_by(normalizer) and not vocabulary.has_subwords:
            return self.frames_needed_stored()
        return np.fromiter((frames_needed(vocabulary.encode(normalizer(text))) for text in self._texts()), np.int32)

    def frames_needed_stored(self) -> NDArray[np.int32]:
        """What CTC over characters needs for the texts as they are in the file."""
        needed: NDArray[np.int32] = self._columns["frames_needed"].to_numpy()
        return needed

    def _is_normalised_by(self, normalizer: Normalizer) -> bool:
        return self._facts["normalizer"] == [normalizer.unicode_form, normalizer.case, normalizer.punctuation]

    def _texts(self) -> Iterator[str]:
        column = self._columns["text"]
        for start in range(0, len(self), TEXTS_AT_A_TIME):
            yield from column.slice(start, TEXTS_AT_A_TIME).to_pylist()


def _number(file: int, place: int, row: int) -> float:
    value: float = struct.unpack("<d", os.pread(file, 8, place + 8 * row))[0]
    return value
