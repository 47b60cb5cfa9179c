"""A training run that only writes down what it is shown: one JSON line a micro-batch and rank.

`train` runs in the calling process; `python seen_ids.py JSON` calls it with the options of a JSON object in a process
of its own, which kills itself (SIGKILL) when it has done `kill_at` steps and is in the middle of the next.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from data.batch import Batch
from data.datamodule import SpeechDataModule

BY_COUNT = {"global_batch_size": 8, "per_device_batch_size": 2}
BY_SECONDS = {
    "global_batch_size": None,
    "per_device_batch_size": None,
    "seconds_per_batch": 5.0,
    "micro_batches_per_step": 4,
}


class Recorder(pl.LightningModule):
    """Writes ids as they come."""

    def __init__(self, log: Path, kill_at: int | None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.log_path, self.kill_at = log, kill_at

    def training_step(self, batch: Batch, batch_index: int) -> torch.Tensor:
        line = {"epoch": batch.epoch, "step": self.global_step, "ids": batch.utterance_ids, "n": batch.step_utterances}
        with self.log_path.with_suffix(f".{self.global_rank}.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        if self.kill_at is not None and self.global_step == self.kill_at and batch_index % 4 == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return (self.weight * batch.audio.abs().mean()).sum()

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        with self.log_path.with_suffix(f".val{self.global_rank}.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": batch_index, "ids": batch.utterance_ids}) + "\n")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(
    manifest: str,
    log: str,
    checkpoints: str,
    *,
    workers: int = 0,
    devices: int = 1,
    epochs: int = 2,
    max_steps: int = -1,
    kill_at: int | None = None,
    resume: str | None = None,
    val_manifest: str | None = None,
    **sizes: Any,
) -> list[dict[str, Any]]:
    """Train two epochs with a checkpoint at every step (`step=N.ckpt`); returns the lines of rank 0."""
    data = SpeechDataModule(manifest, val_manifest, num_workers=workers, cache_audio_seconds=0, **(sizes or BY_COUNT))
    keep = ModelCheckpoint(checkpoints, "{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=epochs if max_steps < 0 else None,
        max_steps=max_steps,
        accumulate_grad_batches=data.accumulate_grad_batches(devices),
        callbacks=[keep],
        num_sanity_val_steps=0,
        limit_val_batches=0.0 if val_manifest is None else 1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Recorder(Path(log), kill_at), data, ckpt_path=resume)
    return seen(log)


def seen(log: str) -> list[dict[str, Any]]:
    """The lines of all ranks by step."""
    path = Path(log)
    files = sorted(path.parent.glob(f"{path.name}.*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: int(line["step"]))


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
