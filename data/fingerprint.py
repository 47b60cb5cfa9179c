"""Whether manifests still say what they said: of each split the rows, and digests of what training takes from them.

Four digests, so that a sentence can name what has changed: ids, durations, texts, and places (offsets, and the bytes
inside shards). They depend on the order of the rows, as an epoch does; folders are left out, so a corpus may move.
Of an index the columns are hashed as they lie in the file, whose `row` has the path of the audio too; by SHA-256,
which processors compute in hardware, so that six million rows take seconds.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data.corpus import Corpus, ManifestCorpus, read_corpus

Manifests = str | list[str] | None
Contents = dict[str, Any]
"""Of one split: `rows`, and a digest of each of `PARTS`."""
SPLITS = ("train", "val", "test")
PARTS = ("ids", "durations", "texts", "places")
_COLUMNS = {"ids": "key", "durations": "duration", "texts": "text", "places": "row"}


def contents(corpus: Corpus, paths: Iterable[str | Path]) -> Contents:
    """Of a corpus that was read from `paths`."""
    if isinstance(corpus, ManifestCorpus):
        return _of_rows(corpus)
    (path,) = paths  # an index is joined with no other
    return _of_index(Path(path))


def contents_of(settings: Mapping[str, Any]) -> dict[str, Contents]:
    """By split, of the manifests that the settings of a `SpeechDataModule` name, read here.

    Raises ManifestError for one that cannot be read.
    """
    named = {split: paths_of(settings.get(f"{split}_manifest"), settings.get("root", ".")) for split in SPLITS}
    return {split: dict(_read(*map(_as_it_is, paths))) for split, paths in named.items() if paths}


def paths_of(manifests: Manifests, root: str | Path) -> list[Path]:
    """Manifests as a setting names them, beneath `root`; an empty list for None."""
    return [Path(root) / path for path in ([manifests] if isinstance(manifests, str) else manifests or [])]


def difference(then: Mapping[str, Contents], now: Mapping[str, Contents]) -> str:
    """What has changed between two records, in the words of a sentence; empty where nothing has.

    A split that only one of them has was not looked at in the other, and is passed over.
    """
    return "; ".join(
        f"{split} had {then[split]['rows']:,} utterances and has {now[split]['rows']:,}, {_others(then, now, split)}"
        for split in then
        if split in now and then[split] != now[split]
    )


def _others(then: Mapping[str, Contents], now: Mapping[str, Contents], split: str) -> str:
    changed = [part for part in PARTS if then[split][part] != now[split][part]]
    return f"with other {' and '.join(filter(None, (', '.join(changed[:-1]), changed[-1])))}"


def _of_rows(corpus: ManifestCorpus) -> Contents:
    digests = {part: hashlib.sha256() for part in PARTS}
    digests["ids"].update(np.ascontiguousarray(corpus.keys).data)
    digests["durations"].update(np.ascontiguousarray(corpus.durations).data)
    for row in corpus:
        digests["texts"].update(json.dumps(row.text).encode())  # in quotes: where a text ends is part of it
        digests["places"].update(repr((row.offset, row.byte_span)).encode())
    return {"rows": len(corpus), **{part: digest.hexdigest()[:32] for part, digest in digests.items()}}


def _of_index(path: Path) -> Contents:
    import pyarrow as pa  # an extra

    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
        return {"rows": len(table), **{part: _of_column(table.column(name)) for part, name in _COLUMNS.items()}}


def _of_column(column: Any) -> str:
    digest = hashlib.sha256()
    for buffer in column.chunk(0).buffers():
        if buffer is not None:
            digest.update(buffer)
    return digest.hexdigest()[:32]


def _as_it_is(path: Path) -> tuple[Path, int, int]:
    """With size and time of change: what was read of it before stands while these do."""
    there = path.stat() if path.exists() else None
    return (path, there.st_size, there.st_mtime_ns) if there else (path, 0, 0)


@lru_cache(maxsize=64)  # the runs of a study share their manifests
def _read(*files: tuple[Path, int, int]) -> Contents:
    paths = [path for path, _, _ in files]
    return contents(read_corpus(paths), paths)
