"""Made-up runs for the tests of tables and pages: folders with `result.json` and `curves.json`, no training."""

import json
import math
import random
from pathlib import Path
from typing import Any

from experiments.report.table import Row, find_folders, read_row
from experiments.run.result import Result
from experiments.run.utterance_errors import write_errors


def write_run(
    root: Path,
    num_layers: int,
    seed: int,
    *,
    status: str = "finished",
    reason: str | None = None,
    points: int = 120,
    hidden_size: int = 64,
    **more: Any,
) -> Path:
    """One run under `root/runs`, with numbers that fall with depth and differ by seed."""
    random_ = random.Random(f"{num_layers}-{hidden_size}-{seed}")
    folder = root / "runs" / f"layers-{num_layers}_units-{hidden_size}_seed-{seed}"
    folder.mkdir(parents=True)
    words = 480
    errors = round(words * (0.02 + 0.25 / num_layers) * random_.uniform(0.9, 1.1))
    finished = status == "finished"
    saved = 3_000_000 + 1_400_000 * num_layers
    config = {
        "model": {"num_layers": num_layers, "hidden_size": hidden_size, "skip_span": 4},
        "trainer": {"max_epochs": 20},
        "seed_everything": seed,
    }
    Result(
        name="demo",
        config=config,
        config_hash=f"{random_.getrandbits(256):064x}",
        seed=seed,
        status=status,  # type: ignore[arg-type]
        reason=reason,
        commit="0123456789abcdef0123456789abcdef01234567",
        started="2026-11-30T12:00:00+00:00",
        wall_seconds=40.0 + 11 * num_layers,
        device="CPU of the tests",
        world_size=1,
        backend="reference",
        precision="32-true",
        parameters=100_000 + 2 * num_layers * hidden_size**2,
        epochs=20,
        steps=points,
        loss=0.4,
        val_loss=0.7 if finished else None,
        val_wer=errors / words if finished else None,
        wer=errors / words if finished else None,
        errors=errors if finished else None,
        words=words if finished else None,
        peak_memory_bytes=saved + 12 * num_layers * hidden_size**2,
        peak_memory_source="accounted",
        saved_bytes=saved,
        audio_seconds_per_second=900 / (1 + 0.2 * num_layers) * random_.uniform(0.97, 1.03),
        **more,
    ).write(folder)
    if finished:
        share = errors / words
        heard = {f"u{i}": (sum(random_.random() < share for _ in range(4)), 4) for i in range(words // 4)}
        write_errors(folder, heard)
    (folder / "curves.json").write_text(json.dumps(curves(random_, points, num_layers)))
    return folder


def curves(random_: random.Random, points: int, num_layers: int) -> dict[str, list[list[float]]]:
    """Losses that fall from about a hundred, and a dev WER that falls from one."""
    fall = 4 / points * (1 + 0.05 * num_layers)
    loss = [[step, 90 * math.exp(-fall * step) * random_.uniform(0.8, 1.25) + 0.3] for step in range(points)]
    every = max(1, points // 20)
    val = [[step, 80 * math.exp(-0.9 * fall * step) + 0.8] for step in range(every, points, every)]
    wer = [[step, min(1.0, 1.5 * math.exp(-fall * step) + 0.03)] for step in range(every, points, every)]
    return {"train/loss": loss, "val/loss": val, "val/wer": wer}


def study_rows(root: Path) -> list[Row]:
    """The rows of all runs beneath `root`, in the order of their depths and seeds."""
    rows = [row for folder in find_folders(root) if (row := read_row(folder, root)) is not None]
    return sorted(rows, key=lambda row: (row["num_layers"], row["seed"]))
