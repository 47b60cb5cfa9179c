"""A corpus of any known layout to manifests, one a split: OUT/<split>.jsonl, and OUT/import.json with what was left
out.

Audio stays where it is (manifests name it by its whole path). Durations are measured from the headers. Nothing that
cannot be used is dropped silently: each is a sentence in import.json and on the terminal.
"""

import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile

from data.importers import KINDS
from data.importers.found import Found, LayoutError, Reading
from data.manifest import Utterance, write_manifest
from data.sound_facts import sound_facts
from data.text import Normalizer

Track = Callable[[Iterator[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Imported:
    """The manifests written, with utterances and hours of each, and a sentence for everything left out."""

    manifests: dict[Path, tuple[int, float]]
    problems: list[str]


def import_corpus(
    kind: str,
    source: str | Path,
    out: str | Path,
    *,
    normalizer: Normalizer | None = None,
    jobs: int | None = None,
    track: Track = lambda steps, total: steps,
) -> Imported:
    """Write the manifests of `source`, a corpus of this kind, to `out`; texts as they are unless `normalizer` is given.

    Raises LayoutError for an unknown kind and a source that is not of it.
    """
    source, out = Path(source).absolute(), Path(out).absolute()
    if kind not in KINDS:
        raise LayoutError(f"{kind!r} is no kind of corpus; give one of {', '.join(KINDS)}.")
    if not source.exists():
        raise LayoutError(f"{source}: there is no such file or folder; name the corpus.")
    reading: Reading = importlib.import_module(f"data.importers.{kind}").read(source, out)
    problems = list(reading.problems)
    manifests = {}
    total = sum(map(len, reading.splits.values()))
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        every = [(split, found) for split, split_found in reading.splits.items() for found in split_found]
        measured = track(pool.map(lambda item: _measured(item[1], normalizer), every), total)
        rows: dict[str, list[Utterance]] = {split: [] for split in reading.splits}
        for (split, _), row in zip(every, measured, strict=True):
            if isinstance(row, str):
                problems.append(row)
            else:
                rows[split].append(row)
    for split, utterances in rows.items():
        path = out / f"{split}.jsonl"
        write_manifest(path, utterances)
        manifests[path] = (len(utterances), sum(row.duration for row in utterances) / 3600)
    imported = Imported(manifests, problems)
    _write_account(kind, source, out, imported)
    return imported


def _measured(found: Found, normalizer: Normalizer | None) -> Utterance | str:
    duration = found.duration
    try:
        facts = sound_facts(found.audio, found.byte_span)
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        return f"{found.audio}: the audio cannot be read ({error}); replace the file."
    if duration is None:
        duration = facts.seconds - (found.offset or 0.0)
    if duration <= 0:
        return f"{found.audio}: {duration:g} s of audio; replace the file or mend the offset."
    return Utterance(
        found.audio,
        duration,
        normalizer(found.text) if normalizer else found.text,
        found.id,
        found.speaker,
        found.offset or 0.0,
        found.byte_span,
        segment=found.offset is not None,
    )


def _write_account(kind: str, source: Path, out: Path, imported: Imported) -> None:
    account = {
        "kind": kind,
        "source": str(source),
        "manifests": {path.name: {"utterances": n, "hours": hours} for path, (n, hours) in imported.manifests.items()},
        "problems": imported.problems,
    }
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "import.json.partial"
    partial.write_text(json.dumps(account, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(out / "import.json")
