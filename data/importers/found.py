"""What an importer finds in a layout, before durations are measured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data.manifest import Utterance, read_manifest

AUDIO_SUFFIXES = (".flac", ".wav", ".mp3", ".ogg", ".opus", ".sph", ".aiff", ".aif", ".au")


class LayoutError(ValueError):
    """A source that does not have the layout of its kind; the sentence says what was looked for."""


@dataclass(frozen=True)
class Found:
    """An utterance of a layout; `duration` and `offset` in seconds where the layout gives them."""

    audio: Path
    text: str
    id: str
    speaker: str | None = None
    offset: float | None = None
    duration: float | None = None
    byte_span: tuple[int, int] | None = None


@dataclass
class Reading:
    """Utterances by split, and a sentence for each line of the layout that could not be used."""

    splits: dict[str, list[Found]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, split: str, found: Found) -> None:
        """One more utterance of a split."""
        self.splits.setdefault(split, []).append(found)


def audio_beside(stem: Path) -> Path | None:
    """The sound file of this path less suffix, whatever its format."""
    return next((path for suffix in AUDIO_SUFFIXES if (path := stem.with_name(stem.name + suffix)).is_file()), None)


def text_of(path: Path) -> str:
    """The text of a file, its byte-order mark left out, line ends as they are. Raises LayoutError where it is none."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise LayoutError(f"{path}: cannot be read ({error.strerror}); check the path.") from error
    except UnicodeDecodeError as error:
        raise LayoutError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8.") from error


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """("file:line", line) of every line that is not blank, without byte-order mark and line end."""
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line.rstrip("\r")


def own_manifests(source: Path) -> Reading | None:
    """A copy of a corpus that brings manifests of ours (`*.jsonl` beside its audio) is read by those."""
    manifests = sorted(source.glob("*.jsonl"))
    if not manifests:
        return None
    return Reading({path.stem: list(_of_rows(read_manifest(path))) for path in manifests})


def _of_rows(rows: Iterable[Utterance]) -> Iterator[Found]:
    for row in rows:
        offset = row.offset if row.segment else None
        yield Found(row.audio_filepath, row.text, row.id, row.speaker, offset, row.duration, row.byte_span)
