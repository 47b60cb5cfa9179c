"""`test_errors.csv` of a run: word errors and words of each test utterance, to compare two runs in pairs."""

import csv
import io
from pathlib import Path

from experiments.run.result import write_atomically

ERRORS_NAME = "test_errors.csv"


def write_errors(folder: Path, by_utterance: dict[str, tuple[int, int]]) -> None:
    """One line an utterance: id, errors, words."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", "errors", "words"))
    writer.writerows((name, *counts) for name, counts in sorted(by_utterance.items()))
    write_atomically(folder / ERRORS_NAME, text.getvalue())


def read_errors(folder: Path) -> dict[str, tuple[int, int]]:
    """The same again; empty where the run was not tested."""
    path = folder / ERRORS_NAME
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: (int(row["errors"]), int(row["words"])) for row in csv.DictReader(file)}
