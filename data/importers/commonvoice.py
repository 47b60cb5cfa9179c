"""Common Voice (commonvoice.mozilla.org): train.tsv, dev.tsv, test.tsv with client_id, path, sentence; clips/."""

import csv
from pathlib import Path

from data.importers.found import Found, LayoutError, Reading, numbered_lines

SPLITS = ("train", "dev", "test")


def read(source: Path, out: Path) -> Reading:
    """The official splits; validated.tsv alone where there are none."""
    tables = [source / f"{split}.tsv" for split in SPLITS if (source / f"{split}.tsv").is_file()]
    tables = tables or [path for path in [source / "validated.tsv"] if path.is_file()]
    if not tables:
        raise LayoutError(
            f"{source}: no train.tsv, dev.tsv, test.tsv or validated.tsv; name the folder of one language."
        )
    reading = Reading()
    for table in tables:
        lines = list(numbered_lines(table))
        if not lines:
            raise LayoutError(f"{table}: it is empty; unpack the release again.")
        header = next(csv.reader([lines[0][1]], delimiter="\t", quoting=csv.QUOTE_NONE))
        if missing := {"client_id", "path", "sentence"} - set(header):
            raise LayoutError(f"{table}:1: no column {sorted(missing)[0]}; the table is not one of Common Voice.")
        for where, line in lines[1:]:
            values = dict(zip(header, line.split("\t"), strict=False))
            name, sentence = values.get("path", ""), values.get("sentence")
            clip = source / "clips" / (name if Path(name).suffix else name + ".mp3")
            if sentence is None or not clip.is_file():
                what = "the line is cut short" if sentence is None else f"there is no clips/{clip.name}"
                reading.problems.append(f"{where}: {what}; unpack the release again.")
            else:
                reading.add(table.stem, Found(clip, sentence, clip.stem, speaker=values["client_id"]))
    return reading
