"""Fills a run's `Result` while it goes, and writes it when it ends, whatever the end is.

As a callback it sees every stage; its own state (best dev numbers, seconds so far) is part of the checkpoint, so a
resumed run's result is that of the whole run.
"""

import math
import time
from dataclasses import asdict
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.utilities.exceptions import SIGTERMException
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from data.fingerprint import difference
from experiments.run import provenance
from experiments.run.callbacks.checkpoints import MONITOR
from experiments.run.callbacks.divergence import Divergence
from experiments.run.callbacks.longest_batch import LongestBatch, out_of_memory
from experiments.run.callbacks.measures import Measures
from experiments.run.callbacks.termination import Termination
from experiments.run.curves import write_curves
from experiments.run.folder import RunFolder
from experiments.run.metrics_log import MetricsLog
from experiments.run.result import Result
from models.gradient_norm import NonFiniteGradientsError

# Of a result, what training has found out when a checkpoint is made.
SO_FAR = (
    "epochs",
    "steps",
    "skipped_steps",
    "val_wer",
    "val_cer",
    "val_loss",
    "peak_memory_bytes",
    "peak_memory_source",
    "saved_bytes",
    "saved_bytes_per_layer",
    "saved_tensors_per_layer",
    "audio_seconds_per_second",
    "step_ms",
)


class Recorder(Callback):
    """One run's record. `result.status` is final after `end`."""

    divergence: Divergence
    measures: Measures
    longest: LongestBatch
    termination: Termination

    def __init__(self, folder: RunFolder, result: Result) -> None:
        self.folder, self.result = folder, result
        self.interruption: BaseException | None = None
        self._begin = time.monotonic()
        self._earlier_seconds = 0.0
        self._lines = 0
        self._log: MetricsLog | None = None
        self.trained = False
        self.untested: str | None = None

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """The manifests of the stage are read by now; callbacks' states are not."""
        self.result.data = (self.result.data or {}) | trainer.datamodule.contents  # type: ignore[attr-defined]

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """What runs where. What a run that was cut short had logged past its checkpoint will be logged again."""
        for logger in trainer.loggers:
            if isinstance(logger, MetricsLog):
                self._log = logger
                logger.rewind(self._lines)
        result = self.result
        if not (self.folder.checkpoints / "best.ckpt").exists():
            # A checkpoint of another folder was gone on from: its best was left there.
            result.val_wer = result.val_cer = result.val_loss = None
        result.device = provenance.device_name(pl_module.device.type)
        result.world_size = trainer.world_size
        result.precision = str(trainer.precision)
        result.parameters = pl_module.num_parameters
        with trainer.precision_plugin.forward_context():
            plan = pl_module.plan(result.config["data"]["per_device_batch_size"] or 1)
        result.backend, result.plan = plan.backend, asdict(plan)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Progress and cost so far: a run that is killed later has them in its checkpoint."""
        result = self.result
        result.epochs, result.steps = trainer.current_epoch + 1, trainer.global_step
        result.skipped_steps = pl_module.dropped_steps
        result.audio_seconds_per_second = self.measures.audio_seconds_per_second
        result.step_ms = self.measures.median_step_ms
        self._take_memory(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep the dev numbers of the checkpoint that will be tested."""
        wer = _number(trainer, MONITOR)
        if trainer.state.fn == "fit" and wer is not None and (self.result.val_wer is None or wer < self.result.val_wer):
            self.result.val_wer = wer
            self.result.val_cer, self.result.val_loss = _number(trainer, "val/cer"), _number(trainer, "val/loss")

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """The numbers that the study compares."""
        result = self.result
        result.wer, result.cer = _number(trainer, "test/wer"), _number(trainer, "test/cer")
        result.test_loss = _number(trainer, "test/loss")
        counts = pl_module.error_counts["test"]
        result.errors, result.words = counts.errors, counts.words
        result.character_errors, result.characters = counts.character_errors, counts.characters

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """The epoch's loss is there only after the module's own epoch end; comes also where nothing was left to do."""
        self.result.loss = pl_module.epoch_loss

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Lightning turns Ctrl-C into SystemExit; remember what it was."""
        self.result.loss = _number(trainer, "train/loss")
        if isinstance(exception, NonFiniteGradientsError):
            self.divergence.reason = str(exception)
        elif self.termination.told or trainer.received_sigterm:
            # A signal to the whole process group ends the loader's workers first, which looks like a failure.
            self.interruption = SIGTERMException()
        else:
            self.interruption = exception

    def end(self, error: BaseException | None = None) -> Result:
        """Settle the status and write curves and result (rank 0)."""
        error = self.interruption or error
        if error is not None:
            self.result.status, self.result.reason = _ending(error)
        elif self.divergence.reason is not None:
            self.result.status, self.result.reason = "diverged", self.divergence.reason
        else:
            self.result.status, self.result.reason = "finished", self.untested
        self.result.wall_seconds = self._seconds()
        self._write()
        return self.result

    @rank_zero_only
    def _write(self) -> None:
        write_curves(self.folder.path)
        self.result.write(self.folder.path)

    def _take_memory(self, trainer: Trainer, pl_module: Any) -> None:
        result, longest = self.result, self.longest
        result.saved_bytes = longest.saved_bytes
        result.saved_bytes_per_layer = longest.saved_bytes_per_layer
        result.saved_tensors_per_layer = longest.saved_tensors_per_layer
        if pl_module.device.type == "cuda":
            result.peak_memory_source = "measured"
            now = torch.cuda.max_memory_allocated(pl_module.device)
            result.peak_memory_bytes = max(now, result.peak_memory_bytes or 0)
        elif longest.saved_bytes is not None:
            result.peak_memory_source = "accounted"
            result.peak_memory_bytes = accounted_bytes(trainer, pl_module) + longest.saved_bytes

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._begin

    def state_dict(self) -> dict[str, Any]:
        """Plain values only: checkpoints load with `weights_only=True`."""
        so_far = {name: getattr(self.result, name) for name in SO_FAR}
        lines = 0 if self._log is None else self._log.lines
        return {"seconds": self._seconds(), "so_far": so_far, "lines": lines, "data": self.result.data}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where the checkpoint was; the best checkpoint, loaded for the test, is no such place.

        Raises ValueError where the data is not what the checkpoint was trained on.
        """
        if self.trained:
            return
        self._check_data(state_dict.get("data"))
        self._earlier_seconds, self._lines = float(state_dict["seconds"]), int(state_dict["lines"])
        for name, value in state_dict["so_far"].items():
            setattr(self.result, name, value)

    def _check_data(self, recorded: dict[str, Any] | None) -> None:
        if recorded is None:
            raise ValueError(
                "the checkpoint was written by an older version, which did not record its data; train again with "
                "--resume never"
            )
        # Another folder's checkpoint brings no best dev WER with it, so this run may be judged by another dev set.
        own = self.folder.resume_from is not None and self.folder.resume_from.parent == self.folder.checkpoints
        judged = recorded if own else {"train": recorded["train"]}
        if changed := difference(judged, self.result.data or {}):
            raise ValueError(
                f"{self.folder.resume_from} cannot be gone on from, its data has changed: {changed}; give it the "
                "manifests it had, or train again with --resume never"
            )


def accounted_bytes(trainer: Trainer, pl_module: Any) -> int:
    """Parameters, their gradients and the optimiser's state, in bytes."""
    total = sum(p.numel() * p.element_size() * (2 if p.requires_grad else 1) for p in pl_module.parameters())
    for optimizer in trainer.optimizers:
        for state in optimizer.state.values():
            total += sum(v.numel() * v.element_size() for v in state.values() if isinstance(v, torch.Tensor))
    return total


def _number(trainer: Trainer, name: str) -> float | None:
    value = trainer.callback_metrics.get(name)
    return float(value) if value is not None and math.isfinite(float(value)) else None


def _ending(error: BaseException) -> tuple[Any, str]:
    if isinstance(error, SIGTERMException):
        return "stopped", "SIGTERM"
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted from the keyboard"
    if isinstance(error, torch.OutOfMemoryError):
        return "failed", f"OutOfMemoryError: {out_of_memory(error)}"
    return "failed", f"{type(error).__name__}: {error}"
