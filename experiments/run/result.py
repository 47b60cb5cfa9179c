"""`result.json`: what one run leaves behind, whatever became of it.

The file is the truth of a run; W&B mirrors it, tables and pages read it. Its fields are described, with units, in
`result.schema.json` beside this file. It is written aside and renamed into place, so a reader never sees half of one.
`wer` and `cer` are fractions: errors over reference words (characters), on the test set, at the checkpoint best
by `val/wer`.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["finished", "diverged", "stopped", "failed"]
FILE_NAME = "result.json"
SCHEMA_PATH = Path(__file__).with_name("result.schema.json")
# A finished run at or above this word error rate learnt nothing worth comparing.
CONVERGED_BELOW_WER = 0.95


@dataclass
class Result:
    """One run. What was not reached, or does not exist on this device, is None."""

    name: str
    config: dict[str, Any]
    config_hash: str
    seed: int
    status: Status = "failed"
    reason: str | None = None
    converged: bool | None = None
    commit: str | None = None
    started: str | None = None
    wall_seconds: float | None = None
    # where it ran
    device: str | None = None
    world_size: int | None = None
    backend: str | None = None
    plan: dict[str, Any] | None = None
    precision: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    # what was trained, on what (data/fingerprint.py)
    data: dict[str, Any] | None = None
    parameters: int | None = None
    epochs: int | None = None
    steps: int | None = None
    skipped_steps: int | None = None
    loss: float | None = None
    # dev set, at the best checkpoint
    checkpoint: str | None = None
    val_loss: float | None = None
    val_wer: float | None = None
    val_cer: float | None = None
    # test set, at the best checkpoint
    test_loss: float | None = None
    wer: float | None = None
    errors: int | None = None
    words: int | None = None
    cer: float | None = None
    character_errors: int | None = None
    characters: int | None = None
    # cost
    peak_memory_bytes: int | None = None
    peak_memory_source: Literal["measured", "accounted"] | None = None
    saved_bytes: int | None = None
    saved_bytes_per_layer: int | None = None
    saved_tensors_per_layer: float | None = None
    audio_seconds_per_second: float | None = None
    step_ms: float | None = None

    def summary(self, folder: Path) -> str:
        """The line a person reads at the end."""
        return summary(asdict(self), folder)

    def write(self, folder: Path) -> Path:
        """Write `folder/result.json` atomically; numbers that are not finite become null, and `reason` tells why."""
        if self.status == "finished" and self.wer is not None:
            self.converged = self.wer < CONVERGED_BELOW_WER
        path = folder / FILE_NAME
        write_atomically(path, json.dumps(_finite(asdict(self)), indent=1, allow_nan=False) + "\n")
        return path


def summary(record: Mapping[str, Any], folder: Path) -> str:
    """Of the content of a `result.json` in `folder`: how it ended, its error rates, its time."""
    words = [record["status"] if record["reason"] is None else f"{record['status']}: {record['reason']}"]
    if record["wer"] is not None:
        learnt = ", not converged" if record["converged"] is False else ""
        words.append(f"test WER {record['wer']:.1%} ({record['errors']} errors in {record['words']} words){learnt}")
    if record["val_wer"] is not None:
        words.append(f"best dev WER {record['val_wer']:.1%}")
    words += [f"{record['wall_seconds'] or 0:.0f} s", str(folder / FILE_NAME)]
    return "; ".join(words)


def read_result(folder: Path) -> dict[str, Any] | None:
    """The folder's `result.json`, or None where there is none.

    Raises ValueError when the file is there but is not JSON.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is not a run's result ({error}); delete it and start the run again") from error


def write_atomically(path: Path, text: str) -> None:
    """Write aside in the same folder, flush to disk, rename into place."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _finite(value: Any) -> Any:
    """The same value with None for NaN and infinity, which JSON has no word for."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
