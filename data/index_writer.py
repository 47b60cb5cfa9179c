"""Writing an index: utterances to the columns that data/index.py describes, and what it answers for all texts."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data.frames_needed import frames_needed
from data.index import VERSION
from data.manifest import ManifestError, Utterance
from data.speed import key
from data.storage import is_remote, location
from data.text import Normalizer

CHUNK = 100_000  # rows that are Python objects at a time


def write_rows(path: str | Path, rows: Iterable[Utterance], normalizer: Normalizer | None = None) -> int:
    """Index utterances from any source; returns their number.

    Raises ManifestError for an id that occurs twice. Takes about 300 bytes of memory a row.
    """
    path, normalizer = Path(path).absolute(), normalizer or Normalizer()
    characters: Counter[str] = Counter()
    examples: dict[str, str] = {}
    batches = [_batch(chunk, path.parent, normalizer, characters, examples) for chunk in _chunks(rows)]
    if not batches:
        raise ManifestError(f"{path}: there is no utterance to index; name manifests that have some.")
    table = pa.Table.from_batches(batches).combine_chunks()
    keys = table.column("key").to_numpy()
    unique, first = np.unique(keys, return_index=True)
    if len(unique) < len(keys):
        again = int(np.setdiff1d(np.arange(len(keys)), first)[0])
        twice = json.loads(table.column("row")[again].as_py())[0]
        raise ManifestError(f"{path}: the id {twice!r} is there twice; give each utterance an id of its own.")
    return save(path, table, normalizer, characters, examples)


def save(path: Path, table: Any, normalizer: Normalizer, characters: Counter[str], examples: dict[str, str]) -> int:
    """Write the file, renamed into place; `characters` and `examples` answer for all texts."""
    facts = {
        "version": VERSION,
        "normalizer": [normalizer.unicode_form, normalizer.case, normalizer.punctuation],
        "characters": {character: [count, examples[character]] for character, count in characters.items()},
    }
    table = table.replace_schema_metadata({"prnn": json.dumps(facts, ensure_ascii=False)})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(table)))
    partial.replace(path)
    return len(table)


def _chunks(rows: Iterable[Utterance]) -> Iterator[list[Utterance]]:
    chunk: list[Utterance] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _batch(
    rows: list[Utterance], folder: Path, normalizer: Normalizer, characters: Counter[str], examples: dict[str, str]
) -> Any:
    texts = [normalizer(row.text) for row in rows]
    for text in texts:
        characters.update(text)
        for character in set(text) - examples.keys():
            examples[character] = text
    columns = {
        "row": pa.array([_row(row, folder) for row in rows], pa.large_string()),
        "text": pa.array(texts, pa.large_string()),
        "duration": pa.array([row.duration for row in rows], pa.float64()),
        "key": pa.array([key(row.id) for row in rows], pa.uint64()),
        "frames_needed": pa.array([frames_needed(text) for text in texts], pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _row(row: Utterance, folder: Path) -> str:
    path = row.audio_filepath
    if is_remote(path):
        written = location(path)
    else:
        written = (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()
    start, length = row.byte_span or (None, None)
    return json.dumps([row.id, written, row.speaker, row.offset, row.segment, start, length], ensure_ascii=False)
