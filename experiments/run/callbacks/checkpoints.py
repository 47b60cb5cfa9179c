"""`best.ckpt` (lowest val/wer) and `last.ckpt` (where a killed run goes on): renamed into place, never by NaN.

A checkpoint is written aside in the same folder, flushed and renamed, so a kill in mid-save leaves the one before.
"""

import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from experiments.run.callbacks.position import between_steps, end_is_due

MONITOR = "val/wer"
ASK_EVERY = 20


class RenamedIntoPlace(TorchCheckpointIO):
    """Lightning's own way goes through the system's temporary folder, and a move between file systems is a copy."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write `path` so that it is always whole."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        with aside.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


class BestCheckpoint(ModelCheckpoint):
    """The checkpoint with the lowest val/wer. A WER that is not finite never wins, not even as the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            dirpath=folder,
            filename="best",
            monitor=MONITOR,
            mode="min",
            auto_insert_metric_name=False,
            enable_version_counter=False,
        )

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether `current` beats the best so far."""
        if current is None or not math.isfinite(float(current)):
            return False
        return super().check_monitor_top_k(trainer, current)

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """An epoch without a validation has no best; Lightning would warn or fail."""
        if MONITOR in monitor_candidates:
            super()._save_topk_checkpoint(trainer, monitor_candidates)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The best so far, if it lies in this run's folder: the folder may have been moved, or the checkpoint may be
        another run's."""
        best = Path(str(self.dirpath)) / "best.ckpt"
        score = state_dict["best_model_score"]
        if score is None or not best.exists():
            return
        self.best_model_score = self.kth_value = score
        self.best_model_path = self.kth_best_model_path = str(best)
        self.best_k_models = {str(best): score}


class LastCheckpoint(ModelCheckpoint):
    """The end of every epoch, every `minutes` between, and the moment of a SIGTERM (`termination.py`)."""

    def __init__(self, folder: Path, minutes: float) -> None:
        """Raises ValueError when `minutes` is negative; 0 saves after every optimiser step."""
        if minutes < 0:
            raise ValueError(f"checkpoint_minutes is {minutes}; give the minutes between two checkpoints, at least 0")
        super().__init__(
            dirpath=folder,
            filename="last",
            auto_insert_metric_name=False,
            enable_version_counter=False,
            save_on_train_epoch_end=True,
        )
        self.minutes = minutes
        self._saved_at = time.monotonic()
        self._step = 0

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(str(self.dirpath)) / "last.ckpt"

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What was saved before changes nothing."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from where a resumed run stands."""
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within a long epoch, only between optimiser steps: gradients are in no checkpoint."""
        if trainer.global_step == self._step or end_is_due(trainer):
            return
        self._step = trainer.global_step
        # Ranks ask one clock, and not every step: asking costs a message.
        if self.minutes and self._step % ASK_EVERY:
            return
        if trainer.strategy.broadcast(time.monotonic() - self._saved_at) >= 60 * self.minutes:
            self._saved_at = time.monotonic()
            trainer.save_checkpoint(self.path)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Keep what was trained when the run is told to stop; all ranks are told alike, so none waits alone."""
        if not isinstance(exception, SIGTERMException) or trainer.state.fn != "fit" or not trainer.global_step:
            return
        if between_steps(trainer) and not end_is_due(trainer):
            trainer.save_checkpoint(self.path)
