"""Kaldi data folders: wav.scp and text, with segments, utt2spk where there are. Source: kaldi-asr.org, "Data
preparation".

Either `source` is one such folder (a split of its name), or each folder in it is one. An entry of wav.scp that is a
command is not run; `flac ... FILE |` and `cat FILE |` are understood, since libsndfile reads their FILE itself.
"""

import re
from pathlib import Path

from data.importers.found import Found, LayoutError, Reading, numbered_lines

_READER = re.compile(r"^(?:\S*/)?(?:flac|cat)(?: -\S+)* (\S+) \|$")


def read(source: Path, out: Path) -> Reading:
    """The splits of a folder of data folders, or of one data folder."""
    folders = [source] if (source / "wav.scp").is_file() else sorted(path.parent for path in source.glob("*/wav.scp"))
    if not folders:
        raise LayoutError(f"{source}: no wav.scp in it or in its folders; name a Kaldi data folder.")
    reading = Reading()
    for folder in folders:
        _read_folder(folder, reading)
    return reading


def _read_folder(folder: Path, reading: Reading) -> None:
    recordings = {key: (where, value) for where, key, value in _table(folder / "wav.scp")}
    speakers: dict[str, str] = {}
    if (folder / "utt2spk").is_file():
        speakers = {key: value for _, key, value in _table(folder / "utt2spk")}
    segments: dict[str, tuple[str, float, float]] = {}
    has_segments = (folder / "segments").is_file()
    if has_segments:
        for where, key, value in _table(folder / "segments"):
            try:
                name, first, last = value.split()
                segments[key] = (name, float(first), float(last))
            except ValueError:
                reading.problems.append(f"{where}: not `utterance recording start end`; mend the line.")
    for where, key, text in _table(folder / "text"):
        recording, start, end = segments.get(key, (key, 0.0, 0.0))
        if recording not in recordings or (has_segments and key not in segments):
            missing = "segments" if has_segments and key not in segments else "wav.scp"
            reading.problems.append(f"{where}: {key} has no line in {missing}; run utils/fix_data_dir.sh.")
            continue
        path = _audio(*recordings[recording], folder)
        if isinstance(path, str):
            reading.problems.append(path)
        else:
            offset, duration = (start, end - start if end > start else None) if has_segments else (None, None)
            reading.add(folder.name, Found(path, text, key, speakers.get(key), offset, duration))


def _table(path: Path) -> list[tuple[str, str, str]]:
    rows = []
    for where, line in numbered_lines(path):
        key, _, value = line.strip().partition(" ")
        rows.append((where, key, value.strip()))
    return rows


def _audio(where: str, entry: str, folder: Path) -> Path | str:
    if entry.endswith("|"):
        understood = _READER.match(entry)
        if understood is None:
            return f"{where}: the audio is a command, which is not run; write its output to files and name those."
        entry = understood[1]
    path = Path(entry)
    if not path.is_absolute() and not path.exists():
        path = folder / path
    return path if path.is_file() else f"{where}: there is no {entry}; name it from here or by its whole path."
