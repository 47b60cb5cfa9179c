"""What a study found, in words and numbers: the head of a page and the table on the terminal, both from the tidy table.

The best value of what is varied is chosen on the dev set (mean `val_wer` over seeds); its test WER is then reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.intervals import Spread, by_key
from experiments.report.table import Row, ended_well

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Group:
    """All seeds of one value of what is varied (`values` are its columns); each Spread is over the finished runs."""

    values: dict[str, Any]
    runs: int
    finished: int
    wer: Spread | None
    val_wer: Spread | None
    figures: dict[str, Spread]
    errors: int | None = None
    words: int | None = None

    def mean(self, column: str) -> float | None:
        return self.figures[column].mean if column in self.figures else None


FIGURES = ("peak_memory_bytes", "saved_bytes", "audio_seconds_per_second", "wall_seconds", "parameters")


def groups(rows: Sequence[Row], keys: Sequence[str]) -> list[Group]:
    """The runs gathered by `keys`, ordered by them."""
    ordered = sorted({tuple(row.get(key) for key in keys) for row in rows}, key=_sortable)
    good = [row for row in rows if ended_well(row)]
    spreads = {column: by_key(good, keys, column) for column in ("wer", "val_wer", *FIGURES)}
    found = []
    for values in ordered:
        members = [row for row in rows if tuple(row.get(key) for key in keys) == values]
        done = [row for row in members if ended_well(row)]
        counted = [row for row in done if row["words"]]
        found.append(
            Group(
                dict(zip(keys, values, strict=True)),
                len(members),
                len(done),
                spreads["wer"].get(values),
                spreads["val_wer"].get(values),
                {column: spreads[column][values] for column in FIGURES if values in spreads[column]},
                sum(row["errors"] for row in counted) if counted else None,
                sum(row["words"] for row in counted) if counted else None,
            )
        )
    return found


def best(found: Sequence[Group]) -> Group | None:
    """The group with the lowest mean dev WER; None where no run has one."""
    judged = [group for group in found if group.val_wer is not None]
    return min(judged, key=lambda group: group.val_wer.mean if group.val_wer else 0.0) if judged else None


def status_sentence(rows: Sequence[Row]) -> str:
    """`6 runs: 5 finished, 1 diverged`."""
    counts = Counter(row["status"] for row in rows)
    unconverged = sum(row.get("converged") is False for row in rows)
    order = ("finished", "running", "interrupted", "diverged", "failed", "stopped")
    said = ", ".join(f"{counts[status]} {status}" for status in order if counts[status])
    runs = "1 run" if len(rows) == 1 else f"{len(rows):,} runs"
    return f"{runs}: {said}" + (f" ({unconverged} without converging)" if unconverged else "")


def spread_words(one: Spread | None, scale: float = 1.0, digits: int = 1) -> str:
    """A mean, with its interval where there is one."""
    if one is None:
        return "–"
    mean = f"{one.mean * scale:,.{digits}f}"
    if one.low is None or one.high is None:
        return mean
    return f"{mean} [{one.low * scale:,.{digits}f}, {one.high * scale:,.{digits}f}]"


SUMMARY_HEADER = ("runs", "test WER, %", "dev WER, %", "peak memory", "saved", "audio s/s")


def summary_cells(group: Group) -> list[str]:
    """A line of the summary: the group's values, then the columns of `SUMMARY_HEADER`, as text."""
    speed = group.mean("audio_seconds_per_second")
    return [
        *("–" if value is None else str(value) for value in group.values.values()),
        str(group.runs) if group.finished == group.runs else f"{group.finished} of {group.runs}",
        spread_words(group.wer, 100, 2),
        "–" if group.val_wer is None else f"{100 * group.val_wer.mean:,.2f}",
        bytes_words(group.mean("peak_memory_bytes")),
        bytes_words(group.mean("saved_bytes")),
        "–" if speed is None else f"{speed:,.0f}",
    ]


def noun(column: str) -> str:
    """What a column is called in a heading."""
    words = {"num_layers": "layers", "hidden_size": "units", "skip_span": "skip span"}
    return words.get(column, column.rpartition(".")[2].replace("_", " "))


def words(group: Group) -> str:
    """What stands for a group in a sentence: `8 layers`, `4 layers, 64 units`, `relu, after_batch_norm`."""
    said = []
    for key, value in group.values.items():
        if isinstance(value, str):
            said.append(value)
        elif value is not None:
            said.append(f"{value} {noun(key).removesuffix('s') if value == 1 else noun(key)}")
    return ", ".join(said)


def bytes_words(count: float | None) -> str:
    """Bytes as MiB or GiB with three figures."""
    if count is None:
        return "–"
    value, unit = (count / GIB, "GiB") if count >= GIB else (count / MIB, "MiB")
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def count_words(count: float) -> str:
    """A count of parameters with three figures: `234 M`, `3.21 k`, `90`."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}{unit}"
    return f"{count:.0f}"


def time_words(seconds: float) -> str:
    """`1.4 s`, `2.5 min`."""
    if seconds >= 60:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"


def slope(rows: Sequence[Row], x: str, y: str) -> float | None:
    """Least-squares increase of `y` per unit of `x` over the finished runs; None below two distinct values of `x`."""
    points = [(row[x], row[y]) for row in rows if ended_well(row) and row.get(x) is not None and row.get(y) is not None]
    if len({point[0] for point in points}) < 2:
        return None
    mean_x, mean_y = (sum(point[i] for point in points) / len(points) for i in (0, 1))
    across = sum((a - mean_x) ** 2 for a, _ in points)
    return sum((a - mean_x) * (b - mean_y) for a, b in points) / across


def _sortable(values: tuple[Any, ...]) -> tuple[tuple[int, Any], ...]:
    return tuple((0, value) if isinstance(value, int | float) else (1, str(value)) for value in values)
