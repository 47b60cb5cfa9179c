"""What a sweep varies, as columns of the tidy table: their names, the axis of its figures, the colours on it.

A value that is itself a mapping (`model: {values: [{num_layers: 8, hidden_size: 1632}, ...]}`, W&B's way to vary two
keys together) is as many columns as it has leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.figures import Axis
from experiments.report.table import COLUMNS, CONFIG_COLUMNS, Row

SEED = "seed_everything"
# Axes with words of their own; any other column is called what its key is.
AXES = {
    "num_layers": Axis("num_layers", "recurrent layers", "depth"),
    "skip_span": Axis("skip_span", "recurrent layers a skip spans (0: no skips)", "skip span"),
    "global_batch_size": Axis("global_batch_size", "utterances an optimiser step", "algorithmic batch"),
}


def leaves(point: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The point with dotted keys alone."""
    found: dict[str, Any] = {}
    for name, value in point.items():
        key = f"{above}.{name}" if above else name
        found |= leaves(value, key) if isinstance(value, Mapping) else {key: value}
    return found


def varied_keys(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted keys with more than one value over the points, the seed left out."""
    flat = [leaves(point) for point in points]
    keys = dict.fromkeys(key for point in flat for key in point)
    return [key for key in keys if key != SEED and len({str(point.get(key)) for point in flat}) > 1]


def column_names(keys: Sequence[str]) -> dict[str, str]:
    """`{column: dotted key}`: the key's last word, or the whole key where that is taken."""
    known = {path: column for column, path in CONFIG_COLUMNS.items()}
    found: dict[str, str] = {}
    for key in keys:
        short = key.rpartition(".")[2]
        taken = short in COLUMNS or short in found
        found[known.get(key) or (key if taken else short)] = key
    return found


def axis_and_group(rows: Sequence[Row], columns: Sequence[str]) -> tuple[Axis, str | None]:
    """The horizontal axis, and the column that colours tell apart where one value of the axis has several.

    The axis is depth, skip span or batch where one of them varies, else the first column of numbers, else the first.
    What else varies is joined into the column `variant` of the rows.
    """
    if not columns:
        return AXES["num_layers"], None
    numeric = [column for column in columns if all(isinstance(row.get(column), int | float) for row in rows)]
    column = next((one for one in (*AXES, *numeric, *columns) if one in columns), columns[0])
    axis = AXES.get(column) or Axis(column, column.replace("_", " "), column.replace("_", " "), column in numeric)
    rest = [one for one in columns if one != column and not _follows(rows, column, one)]
    if len(rest) < 2:
        return axis, rest[0] if rest else None
    for row in rows:
        row["variant"] = ", ".join(f"{one.replace('_', ' ')} {row[one]}" for one in rest)
    return axis, "variant"


def point_name(point: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A folder's name: what varies, and the seed."""
    flat = leaves(point)
    shown = [key for key in (*keys, SEED) if key in flat]
    parts = [f"{'seed' if key == SEED else key.rpartition('.')[2]}-{_short(flat[key])}" for key in shown]
    return "_".join(parts) or "run"


def _follows(rows: Sequence[Row], column: str, other: str) -> bool:
    """Whether each value of `column` comes with one value of `other`, as a width that keeps the parameters constant."""
    seen: dict[Any, set[str]] = {}
    for row in rows:
        seen.setdefault(row.get(column), set()).add(str(row.get(other)))
    return all(len(values) == 1 for values in seen.values())


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return "".join(letter if letter.isalnum() or letter in "+-." else "-" for letter in text)[:40].strip("-.") or "none"
