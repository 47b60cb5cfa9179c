"""A sweep's folder: what it remembers (sweep.json), its runs as a table (table.csv) and as a page (report.html)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.report.page import Study, write_page
from experiments.report.paper import CONSTANT_PARAMETERS, CONSTANT_WIDTH, SKIP_SPAN, PaperTable
from experiments.report.table import Row, find_folders, read_row, write_csv
from experiments.run import provenance
from experiments.run.result import write_atomically
from sweeps.columns import axis_and_group
from sweeps.sweep_file import Point, Sweep

SWEEP_NAME = "sweep.json"


def remember(
    root: Path, sweep: Sweep, points: Sequence[Point], columns: dict[str, str], command: Sequence[str]
) -> None:
    """sweep.json: what `table` and `report` need to know of the file that the runs come from, and all points so far."""
    record = {
        "experiment": "sweep",
        "name": sweep.name,
        "description": sweep.description,
        "file": str(sweep.path),
        "command": shlex.join(command),
        "commit": provenance.commit(),
        "columns": columns,
        "points": list(points),
    }
    root.mkdir(parents=True, exist_ok=True)
    write_atomically(root / SWEEP_NAME, json.dumps(record, indent=1) + "\n")


def recall(root: Path) -> dict[str, Any]:
    """The folder's sweep.json; an empty one where the runs come from no sweep file. ValueError where it is not JSON."""
    path = root / SWEEP_NAME
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); run the sweep again, its results are kept.") from error


def gather(root: Path | None, may_be_empty: bool = False, wandb: str | None = None) -> tuple[list[Row], dict[str, str]]:
    """All rows beneath `root`, and the columns that its sweep varies; and the runs of W&B's project or sweep `wandb`.

    Raises ValueError for half a result and, unless the folder `may_be_empty` or W&B is asked, for none.
    """
    columns: dict[str, str] = recall(root).get("columns", {}) if root else {}
    folders = find_folders(root, may_be_empty or wandb is not None) if root else []
    rows = [row for folder in folders if (row := read_row(folder, root or folder, columns)) is not None]
    if wandb is not None:
        from sweeps.wandb_rows import with_wandb

        rows = with_wandb(rows, root, wandb, columns)
    for row in rows:
        row |= {"skip_span": row["skip_span"] or 0} if "skip_span" in columns else {}
        row |= {column: "none" for column in columns if row[column] is None}
    return rows, columns


def write_report(root: Path, path: Path) -> list[Row]:
    """table.csv beside the runs and the page at `path`; returns the rows."""
    rows, columns = gather(root)
    write_csv(root / "table.csv", rows, list(columns))
    write_page(path, study_of(root, rows))
    return rows


def study_of(root: Path, rows: list[Row]) -> Study:
    """What the page of the folder tells: by what its sweep varies, or by what differs where there is no sweep file."""
    told = recall(root)
    columns: dict[str, str] = told.get("columns", {})
    varied = list(columns) or [
        column for column in ("num_layers", "skip_span", "hidden_size") if len({row[column] for row in rows}) > 1
    ]
    axis, group = axis_and_group(rows, varied)
    title = told.get("name") or f"Word error rate and memory by {axis.noun}"
    question = told.get("description") or f"{len(rows):,} runs of {root}"
    command = told.get("command") or f"python -m sweeps report {root}"
    return Study(title, question, command, rows, root, axis, group, _paper(varied))


def _paper(columns: Sequence[str]) -> tuple[PaperTable, ...]:
    if "skip_span" in columns:
        return (SKIP_SPAN,)
    if "num_layers" in columns:
        return (CONSTANT_WIDTH, CONSTANT_PARAMETERS)
    return ()
