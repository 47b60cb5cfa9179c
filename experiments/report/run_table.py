"""The table of runs on a page: which columns there are, and how a value of each reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.findings import bytes_words, count_words, noun, time_words
from experiments.report.table import Row


@dataclass(frozen=True)
class Column:
    """A column of the run table: how a value reads, and whether it sorts as a number."""

    key: str
    title: str
    kind: str = "number"
    # Left out on a phone: the run's name or its folder tells it.
    minor: bool = False

    @property
    def classes(self) -> str:
        """Of its header: words stand to the left."""
        return " ".join(["word"] * (self.kind in ("name", "status", "word")) + ["minor"] * self.minor)

    def cell(self, row: Row) -> dict[str, Any]:
        """What the page's template writes: text, the number to sort by, classes, an address."""
        value = row.get(self.key)
        kind, link, sort = "", None, value if isinstance(value, int | float) and not isinstance(value, bool) else None
        if self.kind == "name":
            kind, link = "name", f"{row['folder']}/result.json"
        elif self.kind == "status":
            kind = f"word status-{value}"
        if value is None:
            text = "–"
        elif self.kind == "errors":
            text = f"{value:,} / {row['words']:,}"
        elif self.kind == "percent":
            text = f"{100 * value:.2f}"
        elif self.kind == "bytes":
            text = bytes_words(value)
        elif self.kind == "seconds":
            text = time_words(value)
        elif self.kind == "count":
            text = count_words(value)
        elif isinstance(value, float):
            text = f"{value:,.4g}" if abs(value) < 100 else f"{value:,.0f}"
        else:
            text = str(value)
        if self.kind == "word" or self.minor:
            kind = self.classes
        return {"text": text, "key": sort, "kind": kind, "link": link}


COLUMNS = (
    Column("name", "run", "name"),
    Column("num_layers", "layers"),
    Column("hidden_size", "units", minor=True),
    Column("seed", "seed", minor=True),
    Column("status", "status", "status"),
    Column("wer", "test WER, %", "percent"),
    Column("errors", "errors / words", "errors", minor=True),
    Column("val_wer", "dev WER, %", "percent"),
    Column("peak_memory_bytes", "peak memory", "bytes"),
    Column("saved_bytes", "saved", "bytes", minor=True),
    Column("audio_seconds_per_second", "audio s/s"),
    Column("parameters", "parameters", "count", minor=True),
    Column("wall_seconds", "time", "seconds", minor=True),
)


def columns_of(rows: Sequence[Row], axis_and_group: Sequence[str | None]) -> tuple[Column, ...]:
    """The columns of a study's run table: what it varies stands behind the name.

    A size that all runs share is left out; it is in each run's config.
    """
    varied = [key for key in axis_and_group if key is not None]
    first = [next((column for column in COLUMNS if column.key == key), _column(rows, key)) for key in varied]
    shared = {key for key in ("num_layers", "hidden_size") if len({row.get(key) for row in rows}) == 1}
    rest = [column for column in COLUMNS[1:] if column.key not in {*varied, *(shared if len(rows) > 1 else ())}]
    return (COLUMNS[0], *first, *rest)


def _column(rows: Sequence[Row], key: str) -> Column:
    numeric = all(isinstance(row.get(key), int | float) for row in rows)
    return Column(key, noun(key), "number" if numeric else "word")
