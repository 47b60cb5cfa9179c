"""Gradient accumulation follows from the batch that was asked for.

`data.global_batch_size` is the setting (effect 3: the algorithmic mini-batch); per-device batch and world size are what
the machine has; the number of micro-batches between two optimiser steps is the quotient, and an error when it does not
divide.
"""

from pytorch_lightning import Callback, LightningModule, Trainer


class Accumulation(Callback):
    """Set before the optimiser is made, since schedules count optimiser steps."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask the data module; raises its ValueError when the global batch does not divide."""
        if stage == "fit":
            trainer.accumulate_grad_batches = trainer.datamodule.accumulate_grad_batches(trainer.world_size)  # type: ignore[attr-defined]
