"""Manifests: JSON lines, one utterance a line, and the rows that everything downstream reads.

    {"audio_filepath": "audio/a.flac", "duration": 4.2, "text": "enter two", "speaker": "mjwl", "offset": 0.0}

`audio_filepath` is relative to the manifest's folder (or absolute), `duration` and `offset` are seconds, `speaker`,
`id` and `offset` are optional. An utterance packed in a shard has two more fields, `byte_offset` and `byte_length`:
the bytes of its own audio file inside `audio_filepath`. The id defaults to the path as written, with `@offset` behind
it where the offset is not zero.

A byte-order mark, CRLF line ends and blank lines are understood. Everything else that is wrong is named with file and
line.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.storage import is_remote, location, path_of


class ManifestError(ValueError):
    """A manifest or one of its lines cannot be used; the sentence names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One row: where the audio is, how long it lasts (seconds), what was said.

    `byte_span` is (first byte, number of bytes) of the audio inside a shard, None for a file of its own. `segment`: the
    line names an offset, so the file may go on after the utterance; else the duration must be that of the whole file.
    `manifest` and `line` say where it was read: of the same utterance, wherever it is written.
    """

    audio_filepath: Path
    duration: float
    text: str
    id: str
    speaker: str | None = None
    offset: float = 0.0
    byte_span: tuple[int, int] | None = None
    segment: bool = False
    manifest: Path | None = field(default=None, compare=False, repr=False)
    line: int = field(default=0, compare=False, repr=False)

    @property
    def place(self) -> str:
        """`manifest:line`, or the id where it came from no manifest."""
        return self.id if self.manifest is None else f"{self.manifest}:{self.line}"


def default_id(path: str, offset: float) -> str:
    """The id of an utterance that names none: its path as written, and its offset where that is not zero."""
    return path if offset == 0 else f"{path}@{offset:g}"


def read_manifest(path: str | Path) -> list[Utterance]:
    """All utterances of a manifest, in its order.

    Raises ManifestError with the first bad line (and the number of further ones), for a missing or empty manifest and
    for two lines of one id.
    """
    utterances: list[Utterance] = []
    problems: list[str] = []
    for _, row in scan_manifest(path):
        if isinstance(row, Utterance):
            utterances.append(row)
        else:
            problems.append(row)
    if problems:
        more = f" (and {len(problems) - 1} more bad lines; python -m data validate lists them)" if problems[1:] else ""
        raise ManifestError(problems[0] + more)
    if not utterances:
        raise ManifestError(f"{path}: the manifest has no utterance; write one JSON object a line.")
    return utterances


def scan_manifest(path: str | Path) -> Iterator[tuple[int, Utterance | str]]:
    """(line number, utterance or the sentence that says what is wrong) for every line that is not blank."""
    path = Path(path).absolute()
    seen: dict[str, int] = {}
    try:
        raw_lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise ManifestError(
            f"{path}: the manifest cannot be read ({error.strerror}); check the path, or make it with python -m data."
        ) from error
    for number, raw in enumerate(raw_lines, start=1):
        if not raw.strip():
            continue
        where = f"{path}:{number}"
        row: Utterance | str
        try:
            row = _parse(raw, path, number)
            if row.id in seen:
                raise ManifestError(
                    f"{where}: the id {row.id!r} is that of line {seen[row.id]} too; give each utterance its own."
                )
            seen[row.id] = number
        except ManifestError as error:
            row = str(error)
        yield number, row


def _parse(raw: bytes, manifest: Path, line: int) -> Utterance:
    where = f"{manifest}:{line}"
    try:
        fields = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{where}: the line is not UTF-8 (byte {error.start}); save the manifest as UTF-8."
        ) from None
    except json.JSONDecodeError as error:
        raise ManifestError(f"{where}: the line is not JSON ({error}); write one JSON object a line.") from None
    if not isinstance(fields, dict):
        raise ManifestError(
            f"{where}: the line is {raw.decode().strip()[:40]}, a JSON {type(fields).__name__}; write an object "
            "{...} with audio_filepath, duration and text."
        )
    path = _string(fields, "audio_filepath", where)
    if not path:
        raise ManifestError(f"{where}: audio_filepath is empty; name the audio file.")
    offset = _seconds(fields, "offset", where, default=0.0)
    duration = _seconds(fields, "duration", where)
    if duration <= 0:
        raise ManifestError(f"{where}: duration is {duration}; it must be above zero, the seconds of audio.")
    speaker = fields.get("speaker")
    return Utterance(
        audio_filepath=path_of(path, manifest.parent),
        duration=duration,
        text=_string(fields, "text", where),
        id=_string(fields, "id", where) if "id" in fields else default_id(path, offset),
        speaker=None if speaker is None else str(speaker),
        offset=offset,
        byte_span=_byte_span(fields, where),
        segment="offset" in fields,
        manifest=manifest,
        line=line,
    )


def _string(fields: dict[str, Any], key: str, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        given = f"is {value!r}" if key in fields else "is missing"
        raise ManifestError(f"{where}: {key} {given}; give it as text in quotes.")
    return value


def _seconds(fields: dict[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = fields.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        given = f"is {value!r}" if key in fields else "is missing"
        raise ManifestError(f"{where}: {key} {given}; give seconds as a number, zero or more.")
    return float(value)


def _byte_span(fields: dict[str, Any], where: str) -> tuple[int, int] | None:
    if "byte_offset" not in fields and "byte_length" not in fields:
        return None
    start, length = fields.get("byte_offset"), fields.get("byte_length")
    if not isinstance(start, int) or not isinstance(length, int) or start < 0 or length < 1:
        raise ManifestError(
            f"{where}: byte_offset and byte_length are {start!r} and {length!r}; give both, whole numbers of bytes, "
            "the length 1 or more."
        )
    return start, length


def write_manifest(path: str | Path, utterances: Iterable[Utterance]) -> None:
    """Write a manifest that `read_manifest` reads back equal; paths inside its folder are written relative to it.

    The file is renamed into place, so a reader never sees half of it.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as stream:
        for row in utterances:
            stream.write(json.dumps(_fields(row, path.parent), ensure_ascii=False) + "\n")
    partial.replace(path)


def _fields(row: Utterance, folder: Path) -> dict[str, Any]:
    inside = row.audio_filepath.is_relative_to(folder)
    written = (row.audio_filepath.relative_to(folder) if inside else row.audio_filepath).as_posix()
    written = location(row.audio_filepath) if is_remote(row.audio_filepath) else written
    fields: dict[str, Any] = {"audio_filepath": written, "duration": row.duration, "text": row.text}
    if row.speaker is not None:
        fields["speaker"] = row.speaker
    if row.id != default_id(written, row.offset):
        fields["id"] = row.id
    if row.offset or row.segment:
        fields["offset"] = row.offset
    if row.byte_span is not None:
        fields["byte_offset"], fields["byte_length"] = row.byte_span
    return fields
