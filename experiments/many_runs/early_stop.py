"""Stopping a run because others do better: who may ask for it, and how it is remembered.

A run that is stopped from outside goes on when it is asked for again. One that was stopped early has ended: its folder
holds `stopped_early.txt` with the reason, and its result says so.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.run.result import FILE_NAME, read_result, write_atomically

MARK_NAME = "stopped_early.txt"
# Shown a run's name and the lines of `metrics.jsonl` that are new; a reason to stop it, or None.
Judge = Callable[[str, Sequence[bytes]], str | None]


def stopped_early(folder: Path) -> dict[str, Any] | None:
    """The result of a run that was stopped early, None for any other."""
    result = read_result(folder) if (folder / MARK_NAME).exists() else None
    return result if result is not None and result["status"] == "stopped" else None


def record_early_stop(folder: Path, result: dict[str, Any], reason: str) -> dict[str, Any]:
    """Write why the run was stopped into its result, and mark its folder; returns the result."""
    told = {**result, "reason": f"stopped early: {reason}"}
    write_atomically(folder / MARK_NAME, reason + "\n")
    write_atomically(folder / FILE_NAME, json.dumps(told, indent=1) + "\n")
    return told
