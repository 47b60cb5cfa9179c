"""What a person sees while it trains: a bar on a terminal, one plain line an epoch in a log file."""

import sys
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar

SHOWN = ("train/loss", "val/loss", "val/wer", "audio s/s")


class Bar(RichProgressBar):
    """Loss, WER and audio seconds per second beside the bar."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The metrics of a run, and no version number."""
        return shown(trainer)


class Lines(Callback):
    """`epoch 3/20  step 120  train/loss 12.3  val/loss 10.2  val/wer 0.231  audio s/s 410`."""

    def __init__(self) -> None:
        self._ended: int | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning asks callbacks before the module, whose epoch mean is what belongs into the line."""
        self._ended = trainer.current_epoch + 1

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch before."""
        self._print(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the last epoch."""
        self._print(trainer)

    def _print(self, trainer: Trainer) -> None:
        if self._ended is not None and trainer.is_global_zero:
            values = "  ".join(f"{name} {value:.4g}" for name, value in shown(trainer).items())
            print(f"epoch {self._ended}/{trainer.max_epochs}  step {trainer.global_step}  {values}", flush=True)
        self._ended = None


def bar_wanted() -> bool:
    """On a terminal; a log file gets lines."""
    return sys.stdout.isatty()


def progress() -> list[Callback]:
    """A bar where there is a terminal, else lines."""
    return [Bar(refresh_rate=4)] if bar_wanted() else [Lines()]


def shown(trainer: Trainer) -> dict[str, float]:
    """The newest of each metric that a person wants to see."""
    known = trainer.progress_bar_metrics | dict(trainer.callback_metrics)
    return {name: float(known[name]) for name in SHOWN if name in known}
