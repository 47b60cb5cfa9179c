"""`perf/*`: what a step costs while it trains.

Wall time between the ends of optimiser steps, less what lies between (validation, checkpoints): on a GPU the host runs
ahead, but over a stretch of steps it cannot run ahead further than the queue, so sums over a stretch are right where
single steps are not. Audio seconds are those of all ranks, padding not counted.
"""

import statistics
import time
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

GIB = 2**30
# The first steps load kernels, fill caches and tune; they are not what a step costs.
WARM_UP_STEPS = 3


class Measures(Callback):
    """Logs perf/step_ms, perf/audio_seconds_per_second and perf/peak_memory_gib; `totals` go into the result."""

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.audio_seconds = self.train_seconds = 0.0
        self.step_ms: list[float] = []
        self._stretch_audio = self._stretch_seconds = 0.0
        self._stretch_steps = self._warm = 0
        self._mark: float | None = None
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that is gone on with within an epoch has no start of it."""
        self._mark, self._step = time.perf_counter(), trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The clock does not run between epochs."""
        self._mark, self._step = time.perf_counter(), trainer.global_step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nor over validation."""
        self._mark = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a micro-batch to the stretch; log when Lightning logs."""
        now = time.perf_counter()
        seconds = now - (self._mark or now)
        self._mark = now
        stepped = trainer.global_step != self._step
        self._step = trainer.global_step
        if self._warm < WARM_UP_STEPS:
            self._warm += stepped
            return
        self._stretch_seconds += seconds
        self._stretch_audio += float(batch.audio_lengths.sum()) / self.sample_rate * trainer.world_size
        self._stretch_steps += stepped
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if stepped and every and trainer.global_step % every == 0:
            self._close_stretch(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A short epoch has no logging step in it."""
        self._close_stretch(trainer, pl_module)

    def _close_stretch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._stretch_steps or not self._stretch_seconds:
            return
        self.audio_seconds += self._stretch_audio
        self.train_seconds += self._stretch_seconds
        self.step_ms.append(1000 * self._stretch_seconds / self._stretch_steps)
        metrics = {
            "perf/step_ms": self.step_ms[-1],
            "perf/audio_seconds_per_second": self._stretch_audio / self._stretch_seconds,
        }
        if pl_module.device.type == "cuda":
            metrics["perf/peak_memory_gib"] = torch.cuda.max_memory_allocated(pl_module.device) / GIB
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step - 1)  # Lightning counts steps from 0 in its logs
        trainer.progress_bar_metrics["audio s/s"] = round(metrics["perf/audio_seconds_per_second"], 1)
        self._stretch_audio = self._stretch_seconds = 0.0
        self._stretch_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The closed stretches."""
        return {"audio_seconds": self.audio_seconds, "train_seconds": self.train_seconds, "step_ms": self.step_ms}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.audio_seconds, self.train_seconds = state_dict["audio_seconds"], state_dict["train_seconds"]
        self.step_ms = list(state_dict["step_ms"])

    @property
    def audio_seconds_per_second(self) -> float | None:
        """Over the whole training, all ranks."""
        return self.audio_seconds / self.train_seconds if self.train_seconds else None

    @property
    def median_step_ms(self) -> float | None:
        """Over the logged stretches."""
        return statistics.median(self.step_ms) if self.step_ms else None
