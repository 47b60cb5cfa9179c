"""Ends a run that learns nothing any more, early and with a word why.

Diverged means a loss (mean of the last `window` optimiser steps) above `factor` times the mean of the first `window`
steps. The loss is taken per second of audio, so that a first epoch sorted by length, whose utterances grow, is not
mistaken for divergence. All ranks see the sum over all ranks and decide alike. Losses are read from the device once in
`READ_EVERY` steps, since every reading makes the host wait for it.

The other sign, steps in a row whose gradient is not finite, is seen where they are dropped (`models/recipe.py`).
"""

import math
from collections import deque
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor

from models.rank_rows import gather_rows, own_row

READ_EVERY = 10


class Divergence(Callback):
    """`reason` tells how the run diverged; None while it did not."""

    def __init__(self, window: int = 100, factor: float = 2.0) -> None:
        """`window` in optimiser steps. Raises ValueError when a number is not positive."""
        if window < 1 or factor <= 0:
            raise ValueError(f"divergence: window {window}, factor {factor}; both must be positive")
        self.window, self.factor = window, factor
        self.reason: str | None = None
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=window)
        self._step = 0
        self._micro_batches: list[Tensor] = []
        self._steps: list[Tensor] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that had diverged when it was cut short is not trained on."""
        trainer.should_stop = trainer.should_stop or self.reason is not None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from where a resumed run stands."""
        self._step = trainer.global_step
        self._steps = [step.to(pl_module.device) for step in self._steps]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep a micro-batch's loss and audio on the device; read a stretch of whole steps at a time."""
        loss = outputs["loss"].detach().double() * batch.step_utterances
        self._micro_batches.append(torch.stack([loss, batch.audio_lengths.sum().to(loss)]))
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        self._steps.append(torch.stack(self._micro_batches).sum(dim=0))
        self._micro_batches = []
        if len(self._steps) == READ_EVERY:
            self._read(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge what is left of the epoch."""
        self._read(trainer)

    def _read(self, trainer: Trainer) -> None:
        if not self._steps:
            return
        steps = torch.stack(self._steps)
        self._steps = []
        if trainer.world_size > 1:
            torch.distributed.all_reduce(steps)
        for loss, samples in steps.tolist():
            self.judge(loss / max(samples, 1.0))
        if self.reason is not None:
            trainer.should_stop = True

    def judge(self, loss: float) -> None:
        """Take in one optimiser step's loss (in any unit that stays the same over the run)."""
        if self.reason is not None or not math.isfinite(loss):
            return
        if len(self._first) < self.window:
            self._first.append(loss)
            return
        self._recent.append(loss)
        start, now = sum(self._first) / self.window, sum(self._recent) / len(self._recent)
        if len(self._recent) == self.window and now > self.factor * start:
            self.reason = (
                f"the loss of the last {self.window} steps is {now / start:.2f} times that of the first {self.window}"
            )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to judge as the uninterrupted one would; every rank must call it.

        `unread`: a row a rank, loss and samples of each step of a stretch that is not read yet.
        """
        unread = torch.stack(self._steps) if self._steps else torch.zeros(0, 2, dtype=torch.float64)
        return {
            "reason": self.reason,
            "first": self._first,
            "recent": list(self._recent),
            "unread": gather_rows(unread),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where the checkpoint was. The best checkpoint, loaded for the test, knows no later divergence."""
        self.reason = self.reason or state_dict["reason"]
        self._first = list(state_dict["first"])
        self._recent = deque(state_dict["recent"], maxlen=self.window)
        self._steps = [*own_row(state_dict["unread"])]
