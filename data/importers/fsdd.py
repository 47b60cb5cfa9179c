"""Free Spoken Digit Dataset: {digit}_{speaker}_{index}.wav; indices 0 to 4 are the official test part, the rest train,
of which 5 to 9 are `dev` here. All six speakers are in every part.

Source: github.com/Jakobovski/free-spoken-digit-dataset.
"""

import re
from pathlib import Path

from data.importers.found import AUDIO_SUFFIXES, Found, LayoutError, Reading, own_manifests

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NAME = re.compile(r"^(\d)_([^_]+)_(\d+)$")


def read(source: Path, out: Path) -> Reading:
    """Train, dev and the official test part, by index."""
    if (reading := own_manifests(source)) is not None:
        return reading
    reading = Reading()
    for path in sorted(path for path in source.rglob("*") if path.suffix in AUDIO_SUFFIXES):
        if match := _NAME.match(path.stem):
            digit, speaker, index = match.groups()
            found = Found(path, DIGITS[int(digit)], path.stem, speaker)
            reading.add("test" if int(index) < 5 else "dev" if int(index) < 10 else "train", found)
    if not reading.splits:
        raise LayoutError(f"{source}: no audio named digit_speaker_index; name the folder of the dataset.")
    return reading
