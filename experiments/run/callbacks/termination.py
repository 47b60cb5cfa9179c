"""SIGTERM ends a run between two optimiser steps, on all ranks at once, with everything kept.

The signal is only noted when it comes. It is heeded where a checkpoint can be gone on from exactly (`position.py`): at
the end of an optimiser step (of every tenth with several ranks, which must agree) or of a batch of a validation.
Lightning's own way ends within an accumulation, and calls the other ranks from within the signal's handler, whatever
they are doing.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.utilities.exceptions import SIGTERMException

from experiments.run.callbacks.position import between_steps, end_is_due

# Optimiser steps between two questions to all ranks: each is a message, and the host waits for the device.
ASK_EVERY = 10


class Termination(Checkpoint):
    """`told` once the signal has come to this rank. Lightning calls what it takes for a checkpoint after all other
    callbacks, which must have seen the end of the step before it is heeded."""

    def __init__(self) -> None:
        self.told = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note the signal from here on, whichever part of a run it falls into."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread hears signals
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the place of the handler that Lightning has just put before ours; it puts ours back when it ends."""
        self._replace(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same while the best checkpoint is tested."""
        self._replace(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Raises SIGTERMException at the end of an optimiser step."""
        if trainer.world_size == 1 or trainer.global_step % ASK_EVERY == 0:
            self._heed_in_training(trainer)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Raises SIGTERMException; the validation will be done again."""
        self._heed_in_training(trainer)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Raises SIGTERMException; the test will be done again."""
        self._heed(trainer)

    def _replace(self, trainer: Trainer) -> None:
        # Lightning would end the run on its own for what its handler has heard in between.
        self.told = self.told or trainer.received_sigterm
        trainer._signal_connector.received_sigterm = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: Any) -> None:
        self.told = True

    def _heed_in_training(self, trainer: Trainer) -> None:
        # What remains of a training whose end is due is short, and there is no going on from its middle.
        if trainer.state.fn == "fit" and between_steps(trainer) and not end_is_due(trainer):
            self._heed(trainer)

    def _heed(self, trainer: Trainer) -> None:
        if trainer.strategy.reduce_boolean_decision(self.told, all=False):
            raise SIGTERMException
