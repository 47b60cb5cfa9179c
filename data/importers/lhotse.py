"""Lhotse: a CutSet file (cuts.jsonl, cuts.jsonl.gz) or a Shar folder, through the package lhotse.

Cuts over files are taken as segments of those files; audio inside a Shar is written once, as FLAC, to OUT/audio.
Lhotse's own recipes (`lhotse prepare ...`) bring a hundred corpora into this form. Source:
github.com/lhotse-speech/lhotse, 1.33.
"""

from pathlib import Path
from typing import Any

import soundfile

from data.extras import missing_package
from data.importers.found import Found, LayoutError, Reading


def read(source: Path, out: Path) -> Reading:
    """A file of cuts, a folder of such files (each a split), or a Shar folder."""
    try:
        from lhotse import CutSet
    except ModuleNotFoundError as error:
        raise LayoutError(missing_package(error)) from error
    reading = Reading()
    if source.is_dir() and sorted(source.glob("cuts.*.jsonl*")):
        _read_cuts(CutSet.from_shar(in_dir=source), source.name, out, reading)
        return reading
    files = [source] if source.is_file() else sorted(source.glob("*.jsonl*"))
    if not files:
        raise LayoutError(f"{source}: no cuts (*.jsonl, *.jsonl.gz) and no Shar; name a CutSet or a Shar folder.")
    for path in files:
        _read_cuts(CutSet.from_file(path), path.name.split(".")[0], out, reading)
    return reading


def _read_cuts(cuts: Any, split: str, out: Path, reading: Reading) -> None:
    for cut in cuts:
        text = " ".join(part.text for part in cut.supervisions if part.text)
        speaker = next((str(part.speaker) for part in cut.supervisions if part.speaker), None)
        recording = getattr(cut, "recording", None)
        if recording is None:
            reading.problems.append(f"{cut.id}: a cut without one recording (mixed or padded); save it with its audio.")
            continue
        sources = recording.sources
        if len(sources) == 1 and sources[0].type == "file" and not recording.transforms:
            whole = cut.start == 0 and abs(cut.duration - recording.duration) < 1e-3
            offset = None if whole else float(cut.start)
            reading.add(split, Found(Path(sources[0].source), text, cut.id, speaker, offset, float(cut.duration)))
            continue
        path = out / "audio" / split / f"{cut.id}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, cut.load_audio().T, cut.sampling_rate, subtype="PCM_16")
        reading.add(split, Found(path, text, cut.id, speaker))
