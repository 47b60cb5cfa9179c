"""The logger of `metrics.jsonl`: every logged value of a run, one JSON object a line, appended (read by `curves.py`).

A line holds `step` (the optimiser step, counted from 0 as Lightning does), `epoch` and whatever was logged then. A
checkpoint knows how many lines there were; a run that is gone on with first drops the others, so that nothing is told
twice and nothing is missing.
"""

import json
import math
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from experiments.run.curves import METRICS_NAME, read_metrics
from experiments.run.result import write_atomically


class MetricsLog(Logger):
    """The logger that is always there."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.path = folder / METRICS_NAME
        self.lines = 0

    @property
    def name(self) -> str:
        """The run folder's name."""
        return self.folder.name

    @property
    def version(self) -> str:
        """One run, one version."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder: checkpoints and config go nowhere else."""
        return str(self.folder)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """`config.yaml` has them already."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one line; values that are not finite are written as null."""
        line: dict[str, Any] = {"step": step}
        line |= {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.lines += 1

    @rank_zero_only
    def rewind(self, lines: int) -> None:
        """Keep the first `lines` lines, of which the last may have been cut short by a kill."""
        kept = read_metrics(self.path)[:lines] if self.path.exists() else []
        self.lines = len(kept)
        if self.path.exists():
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))
