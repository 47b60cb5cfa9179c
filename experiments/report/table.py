"""The tidy table: one row a run, flat columns, out of the runs' `result.json`.

Units are in the names: bytes, seconds, fractions (`wer`, `cer`). What a run did not reach is empty; a skip span of 0
is no skips. `source` is `local` for a folder here and `wandb` for a run that W&B alone knows (its `folder` is then an
address). The columns of `COLUMNS` come first and always; a sweep may append the keys it varies.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.run.result import read_result, write_atomically

Row = dict[str, Any]
# Read from the resolved config: column -> path in it.
CONFIG_COLUMNS = {
    "num_layers": "model.num_layers",
    "hidden_size": "model.hidden_size",
    "skip_span": "model.skip_span",
}
RESULT_COLUMNS = (
    "status",
    "wer",
    "errors",
    "words",
    "peak_memory_bytes",
    "saved_bytes",
    "audio_seconds_per_second",
    "reason",
    "converged",
    "cer",
    "val_wer",
    "val_loss",
    "loss",
    "parameters",
    "epochs",
    "steps",
    "wall_seconds",
    "peak_memory_source",
    "saved_bytes_per_layer",
    "device",
    "backend",
    "precision",
    "commit",
    "config_hash",
    "started",
)
COLUMNS = ("name", *CONFIG_COLUMNS, "seed", *RESULT_COLUMNS, "folder", "source")


def read_row(folder: Path, root: Path, varied: Mapping[str, str] | None = None) -> Row | None:
    """One run's row, or None where it has no result. `folder` is written relative to `root`; `varied` adds columns
    (name -> path in the resolved config). Raises ValueError where `result.json` is not one.
    """
    result = read_result(folder)
    return None if result is None else row_of(result, folder, root, varied)


def row_of(result: Mapping[str, Any], folder: Path, root: Path, varied: Mapping[str, str] | None = None) -> Row:
    """The row of a result that was read; what the result does not say is None."""
    config = result.get("config") or {}
    row: Row = {"name": folder.name}
    row |= {column: look_up(config, path) for column, path in CONFIG_COLUMNS.items()}
    if row["skip_span"] is None and look_up(config, "model") is not None:
        row["skip_span"] = 0  # the model's null: no skips
    row["seed"] = result.get("seed")
    row |= {column: result.get(column) for column in RESULT_COLUMNS}
    row["folder"] = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else str(folder)
    row["source"] = "local"
    return row | {column: look_up(config, path) for column, path in (varied or {}).items()}


def find_folders(root: Path, may_be_empty: bool = False) -> list[Path]:
    """Every folder at or beneath `root` with a `result.json`, in order.

    Raises ValueError where `root` is no folder and, unless it `may_be_empty`, where there is no result.
    """
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; give one that holds runs.")
    folders = sorted(path.parent for path in root.rglob("result.json") if not is_put_aside(path.parent))
    if not folders and not may_be_empty:
        raise ValueError(f"{root} holds no result.json, so no run has ended in it; run something there first.")
    return folders


def is_put_aside(folder: Path) -> bool:
    """Whether a run of another commit, or on other data, was put aside here (`run/folder.py`)."""
    return folder.name.startswith("previous-")


def look_up(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a nested config, None where there is none."""
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def to_csv(rows: Iterable[Row], varied: Sequence[str] = ()) -> str:
    """The table as CSV text; empty where a value is None."""
    text = io.StringIO()
    columns = [*COLUMNS, *(column for column in varied if column not in COLUMNS)]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_csv(path: Path, rows: Iterable[Row], varied: Sequence[str] = ()) -> None:
    write_atomically(path, to_csv(rows, varied))


def is_lost(row: Row) -> bool:
    """Whether the run has ended without finishing: it diverged, failed or was stopped."""
    return row["status"] not in ("finished", "running", "interrupted")


def ended_well(row: Row) -> bool:
    """Whether the run's numbers can be compared: it finished. A finished run that did not converge still counts."""
    return row["status"] == "finished" and row["wer"] is not None
