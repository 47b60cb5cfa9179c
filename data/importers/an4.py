"""AN4 (CMU census database): etc/an4_train.fileids and .transcription, audio below wav/; the same for test.

AN4 has no dev part: the official train part less four speakers is `train`, those four are `dev`.
Transcription lines are `<s> YES </s> (an251-fash-b)`; the speaker is the middle of the name. Source:
github.com/cmusphinx/an4.
"""

import re
from pathlib import Path

from data.importers.found import Found, LayoutError, Reading, audio_beside, numbered_lines, own_manifests

DEV_SPEAKERS = ("fplp", "meht", "mnfe", "mtos")
_LINE = re.compile(r"^(?P<text>.*?)\s*\((?P<name>[^()]+)\)\s*$")


def read(source: Path, out: Path) -> Reading:
    """Train, dev and the official test part."""
    if not (source / "etc" / "an4_train.fileids").is_file():
        if (reading := own_manifests(source)) is not None:
            return reading
        raise LayoutError(f"{source}: no etc/an4_train.fileids; name the folder of the AN4 repository.")
    reading = Reading()
    for split in ("train", "test"):
        texts = {}
        for where, line in numbered_lines(source / "etc" / f"an4_{split}.transcription"):
            if (match := _LINE.match(line)) is None:
                reading.problems.append(f"{where}: not `text (name)`; mend the line.")
            else:
                texts[match["name"]] = re.sub(r"</?s>", "", match["text"]).strip()
        for where, line in numbered_lines(source / "etc" / f"an4_{split}.fileids"):
            name = Path(line.strip()).name
            audio = audio_beside(source / "wav" / line.strip())
            if audio is None or name not in texts or name.count("-") < 2:
                what = (
                    f"wav/{line.strip()} has no .sph, .wav or .flac"
                    if audio is None
                    else f"{name} has no transcription"
                    if name not in texts
                    else f"{name} does not name a speaker, as an251-fash-b"
                )
                reading.problems.append(f"{where}: {what}; clone the repository again.")
            else:
                speaker = name.split("-")[1]
                part = "dev" if split == "train" and speaker in DEV_SPEAKERS else split
                reading.add(part, Found(audio, texts[name], name, speaker=speaker))
    return reading
