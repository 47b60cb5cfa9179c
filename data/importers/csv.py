"""A table with a header: a column of paths, one of texts, and speaker, split, duration, offset and id where there are.

Comma, semicolon or tab, whichever the header has most of. Paths are relative to the table's folder.
"""

import csv
import io
from pathlib import Path

from data.importers.found import Found, LayoutError, Reading, text_of

NAMES = {
    "path": ("audio_filepath", "path", "wav_filename", "audio", "file", "filename", "wav"),
    "text": ("text", "transcript", "sentence", "transcription"),
    "speaker": ("speaker", "speaker_id", "client_id"),
    "split": ("split", "subset", "set"),
    "duration": ("duration", "seconds"),
    "offset": ("offset", "start"),
    "id": ("id", "utterance_id"),
}


def read(source: Path, out: Path) -> Reading:
    """One table (a split of its name, unless a column names splits), or every *.csv and *.tsv of a folder."""
    tables = [source] if source.is_file() else sorted([*source.glob("*.csv"), *source.glob("*.tsv")])
    if not tables:
        raise LayoutError(f"{source}: no *.csv or *.tsv; name a table or its folder.")
    reading = Reading()
    for table in tables:
        text = text_of(table)
        header = text.partition("\n")[0]
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), strict=True)
        columns = {
            name: next((c for c in known if c in (rows.fieldnames or ())), None) for name, known in NAMES.items()
        }
        if missing := [name for name in ("path", "text") if columns[name] is None]:
            raise LayoutError(f"{table}:1: no column of {missing[0]}; name it one of {', '.join(NAMES[missing[0]])}.")
        try:
            for row in rows:
                _add(row, columns, f"{table}:{rows.line_num}", table, reading)
        except csv.Error as error:
            raise LayoutError(f"{table}:{rows.line_num}: {error}; mend the quotes of the line.") from error
    return reading


def _add(row: dict[str, str], columns: dict[str, str | None], where: str, table: Path, reading: Reading) -> None:
    values = {name: row.get(column) for name, column in columns.items() if column}
    path, text = values["path"], values["text"]
    if not path or text is None:
        reading.problems.append(f"{where}: path or text is missing; fill both cells.")
        return
    try:
        offset, duration = (float(cell) if (cell := values.get(name)) else None for name in ("offset", "duration"))
    except ValueError as error:
        reading.problems.append(f"{where}: {error}; give seconds as a number.")
        return
    identity = values.get("id") or (path if offset is None else f"{path}@{offset:g}")
    found = Found(table.parent / path, text, identity, values.get("speaker") or None, offset, duration)
    reading.add(values.get("split") or table.stem, found)
