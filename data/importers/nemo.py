"""NeMo manifests: JSON lines with audio_filepath, duration, text; also "tarred", where the audio is in audio_<n>.tar
files. Members of an uncompressed tar are read in place, by their bytes: nothing is unpacked.

Source: NVIDIA NeMo, "ASR datasets".
"""

import json
import tarfile
from pathlib import Path

from data.importers.found import Found, LayoutError, Reading, numbered_lines

Members = dict[str, tuple[Path, tuple[int, int]]]


def read(source: Path, out: Path) -> Reading:
    """One manifest, or every *.json and *.jsonl of a folder, each a split."""
    manifests = [source] if source.is_file() else sorted([*source.glob("*.json"), *source.glob("*.jsonl")])
    if not manifests:
        raise LayoutError(f"{source}: no *.json or *.jsonl; name a NeMo manifest or its folder.")
    reading = Reading()
    for manifest in manifests:
        members: Members | None = None
        for where, line in numbered_lines(manifest):
            try:
                row = json.loads(line)
                name, text = row["audio_filepath"], row["text"]
                duration = float(row["duration"])
            except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                reading.problems.append(
                    f"{where}: no JSON with audio_filepath, duration and text ({error}); mend the line."
                )
                continue
            audio, span = Path(name) if Path(name).is_absolute() else manifest.parent / name, None
            if "shard_id" in row and not audio.is_file():
                members = _members(manifest.parent) if members is None else members
                if name not in members:
                    reading.problems.append(
                        f"{where}: {name} is in no tar of {manifest.parent}; put the tars beside it."
                    )
                    continue
                audio, span = members[name]
            offset = float(row["offset"]) if row.get("offset") else None
            identity = name if offset is None else f"{name}@{offset:g}"
            speaker = None if row.get("speaker") is None else str(row["speaker"])
            reading.add(manifest.stem, Found(audio, text, row.get("id", identity), speaker, offset, duration, span))
    return reading


def _members(folder: Path) -> Members:
    members: Members = {}
    # Beside the manifest, or above it where every shard has a manifest of its own.
    for path in sorted(folder.glob("*.tar")) or sorted(folder.parent.glob("*.tar")):
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.isfile():
                    members[member.name.removeprefix("./")] = (path, (member.offset_data, member.size))
    return members
