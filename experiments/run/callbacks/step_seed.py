"""The random numbers of a micro-batch (dropout) are a function of the seed and its place in the run.

So a run that is gone on with draws what the undisturbed one draws, and no state of a generator need be kept for any
device or rank.
"""

import hashlib
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer


class StepSeed(Callback):
    """`seed`: the run's."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seed this rank's generators for the micro-batch, other ranks' differently."""
        place = repr((self.seed, trainer.current_epoch, batch_idx, trainer.global_rank))
        digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
        torch.manual_seed(int.from_bytes(digest, "little", signed=True))
