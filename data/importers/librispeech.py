"""LibriSpeech and its small relatives: <subset>/<speaker>/<chapter>/<speaker>-<chapter>.trans.txt, a split a subset.

Source: Panayotov et al., ICASSP 2015; openslr.org/12 and /31. Texts are upper case, and stay so unless --case lower.
"""

from pathlib import Path

from data.importers.found import Found, LayoutError, Reading, audio_beside, numbered_lines, own_manifests


def read(source: Path, out: Path) -> Reading:
    """Every subset below `source` (or below its LibriSpeech folder), or `source` as a single subset."""
    root = source / "LibriSpeech" if (source / "LibriSpeech").is_dir() else source
    transcripts = sorted(root.glob("*/*/*/*.trans.txt"))
    if not transcripts:
        root, transcripts = root.parent, sorted(root.glob("*/*/*.trans.txt"))
    if not transcripts:
        if (reading := own_manifests(source)) is not None:
            return reading
        raise LayoutError(f"{source}: no <subset>/<speaker>/<chapter>/*.trans.txt; name the LibriSpeech folder.")
    reading = Reading()
    for transcript in transcripts:
        split = transcript.relative_to(root).parts[0]
        for where, line in numbered_lines(transcript):
            name, _, text = line.partition(" ")
            audio = audio_beside(transcript.with_name(name))
            if audio is None:
                reading.problems.append(f"{where}: no audio {name}.flac beside it; download the subset again.")
            else:
                reading.add(split, Found(audio, text.strip(), name, speaker=name.split("-")[0]))
    return reading
