"""Rows of runs that have not ended, from what they have logged so far.

`running`: a process holds the run's lock. `interrupted`: nobody does; the next runner goes on with it.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import yaml

from experiments.report.table import Row, is_put_aside, row_of
from experiments.run.curves import METRICS_NAME, read_metrics


def live_rows(root: Path, columns: dict[str, str]) -> list[Row]:
    """A row for each run beneath `root` that has a config but no result, in the order of their folders."""
    found = []
    for path in sorted(root.rglob("config.yaml")):
        folder = path.parent
        if (folder / "result.json").exists() or not (folder / "run.json").exists() or is_put_aside(folder):
            continue
        metrics = read_metrics(folder / METRICS_NAME) if (folder / METRICS_NAME).exists() else []
        result: dict[str, Any] = {
            "config": yaml.safe_load(path.read_text(encoding="utf-8")),
            "status": "running" if is_held(folder / ".lock") else "interrupted",
        }
        result["seed"] = result["config"].get("seed_everything")
        for line in metrics:
            result["epochs"] = line.get("epoch", result.get("epochs"))
            if line.get("step") is not None:
                result["steps"] = line["step"] + 1  # the log counts from 0
            result["loss"] = line.get("train/loss", result.get("loss"))
            result["val_loss"] = line.get("val/loss", result.get("val_loss"))
            speed = "perf/audio_seconds_per_second"
            result["audio_seconds_per_second"] = line.get(speed, result.get("audio_seconds_per_second"))
        rates = [line["val/wer"] for line in metrics if line.get("val/wer") is not None]
        result["val_wer"] = min(rates, default=None)
        found.append(row_of(result, folder, root, columns))
    return found


def is_held(lock: Path) -> bool:
    """Whether a process holds the lock of a run's folder."""
    if not lock.exists():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
