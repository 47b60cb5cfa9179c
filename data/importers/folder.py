"""A plain folder: sound files, each with a text file of the same name beside it (a.flac, a.txt).

Folders train, dev, val, valid and test at the top are splits; everything else is one split, `all`.
"""

from pathlib import Path

from data.importers.found import AUDIO_SUFFIXES, Found, LayoutError, Reading, text_of

SPLITS = ("train", "dev", "val", "valid", "test")


def read(source: Path, out: Path) -> Reading:
    """Every sound file below `source`; the folder that holds it names no speaker, since that is not known."""
    reading = Reading()
    for path in sorted(path for path in source.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES):
        inside = path.relative_to(source)
        split = inside.parts[0] if inside.parts[0] in SPLITS else "all"
        text = path.with_suffix(".txt")
        if text.is_file():
            words = text_of(text).split()
            reading.add(split, Found(path, " ".join(words), inside.as_posix()))
        else:
            reading.problems.append(f"{path}: no {text.name} beside it; write what is said there.")
    if not reading.splits and not reading.problems:
        raise LayoutError(f"{source}: no sound file in it; name a folder with sound and text files.")
    return reading
