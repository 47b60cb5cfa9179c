"""Runs that W&B knows, as rows of the tidy table: those of other machines, beside the folders of this one.

Read through W&B's public API. A run's summary holds its result (`result/NAME`, `experiments/run/wandb_log.py`) and its
config is the resolved one, so the columns are the same; a run that has not ended, or was made before that, has what it
logged. A run that is both here and there is one row, the local one: by W&B's id, else by the hash of its config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report.table import Row, row_of
from experiments.run.wandb_log import ID_NAME
from sweeps.wandb_account import account

# W&B's words for how a run stands, in ours; what it calls finished may have diverged, which the summary tells.
STATES = {
    "finished": "finished",
    "running": "running",
    "pending": "running",
    "preempting": "interrupted",
    "preempted": "interrupted",
    "crashed": "interrupted",
    "killed": "stopped",
    "failed": "failed",
}
LOGGED = {
    "wer": "test/wer",
    "cer": "test/cer",
    "val_wer": "val/wer",
    "val_loss": "val/loss",
    "loss": "train/loss",
    "audio_seconds_per_second": "perf/audio_seconds_per_second",
    "epochs": "epoch",
    "steps": "trainer/global_step",
    "reason": "reason",
}


def with_wandb(rows: Sequence[Row], root: Path | None, path: str, columns: Mapping[str, str]) -> list[Row]:
    """`rows` of the folder `root`, and those of W&B's project or sweep `path` that are not among them.

    Raises ValueError for a path that is none, and where W&B does not answer.
    """
    ids = {found.read_text(encoding="utf-8").strip() for found in root.rglob(ID_NAME)} if root else set()
    hashes = {row["config_hash"] for row in rows if row["config_hash"]}
    elsewhere = [row for name, row in _fetched(path, columns) if name not in ids and row["config_hash"] not in hashes]
    return [*rows, *_once(elsewhere)]


def _fetched(path: str, columns: Mapping[str, str]) -> list[tuple[str, Row]]:
    """W&B's id and the row of every run, the oldest first."""
    parts = path.strip("/").split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise ValueError(f"--wandb {path} names no runs; write ENTITY/PROJECT, or ENTITY/PROJECT/SWEEP.")
    filters = {"sweep": parts[2]} if len(parts) == 3 else {}
    with account(f"for the runs of {path}") as api:
        try:
            runs = list(api.runs("/".join(parts[:2]), filters=filters, per_page=200, lazy=False))
        except ValueError as error:
            raise ValueError(f"--wandb {path}: W&B knows no such project ({error}); check the name.") from error
        return [(run.id, _row(run, columns)) for run in runs]


def _row(run: Any, columns: Mapping[str, str]) -> Row:
    summary = {str(key): value for key, value in run.summary_metrics.items()}
    result = {column: summary.get(metric) for column, metric in LOGGED.items()}
    gib = summary.get("perf/peak_memory_gib")
    result |= {
        "peak_memory_bytes": None if gib is None else round(gib * 2**30),
        "seed": run.config.get("seed_everything"),
    }
    result |= {"status": STATES.get(run.state, run.state), "started": run.created_at, "config": run.config}
    result |= {key.removeprefix("result/"): value for key, value in summary.items() if key.startswith("result/")}
    if run.state in ("running", "pending"):
        # A run that was gone on with still shows its earlier end.
        result["status"] = "running"
    row = row_of(result, Path(run.name), Path(), columns)
    return row | {"folder": run.url, "source": "wandb"}


def _once(rows: Iterable[Row]) -> list[Row]:
    """One row a config: one that finished rather than one that did not, then the newest."""
    kept: dict[Any, Row] = {}
    for row in rows:
        key = row["config_hash"] or row["folder"]
        if key not in kept or row["status"] == "finished" or kept[key]["status"] != "finished":
            kept[key] = row
    return list(kept.values())
