"""Where a run stands, and how one that was cut short goes on from there: as if nothing had happened.

A checkpoint is made at one of three places, and each is gone on from in its own way:

    between two optimiser steps      the next utterances are those after the last ones seen
    with a validation still to do    the whole validation is done, then training goes on
    after a whole epoch              the next epoch begins as any other

Lightning 2.6 would lose a validation that was cut short (or go on from its middle, without the errors counted before),
end an epoch without its closing hooks, skip an epoch under `max_steps`, and count a logged step twice. So its counters
are put right here, once: in the checkpoint before its loops read it, and in the loops before the first batch. This file
is the one place of `experiments` that reaches into those loops.

The loader's state is loaded here too: Lightning does it while it sets the loader up, and the schedule, which asks for
the number of steps, has that done before the checkpoint's state is there.
"""

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer


def between_steps(trainer: Trainer) -> bool:
    """Whether no gradient is being accumulated, asked at the end of a micro-batch or within a validation."""
    return not trainer.fit_loop.epoch_loop._should_accumulate()


def end_is_due(trainer: Trainer) -> bool:
    """Whether training ends here but for its closing (a validation, the epoch's mean): no place to go on from, since
    Lightning would take such a training for ended."""
    fit = trainer.fit_loop
    return (trainer.should_stop and fit._can_stop_early) or -1 < fit.max_steps <= trainer.global_step


class Position(Callback):
    """Remembers which validation was done last; the rest of the position is in Lightning's own counters."""

    def __init__(self) -> None:
        self._validated_at = -1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The validation that belongs to this optimiser step needs no repetition."""
        if trainer.state.fn == "fit":
            self._validated_at = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        """Optimiser steps at the last whole validation; -1 before the first."""
        return {"validated_at": self._validated_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where the checkpoint was."""
        self._validated_at = state_dict["validated_at"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint made within the last hook of a batch or an epoch is one of a batch or an epoch that is done.

        Raises ValueError for a checkpoint that does not say where it stands.
        """
        if trainer.state.fn != "fit":
            return
        if self.state_key not in checkpoint["callbacks"]:
            raise ValueError(
                "the checkpoint was written by an older version, which did not say where it stands; train again with "
                "--resume never"
            )
        loops = checkpoint["loops"]["fit_loop"]
        for name in ("epoch_progress", "epoch_loop.batch_progress"):
            for counts in (loops[name]["current"], loops[name]["total"]):
                if counts["ready"] == counts["processed"]:
                    counts["completed"] = counts["processed"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Between the restored counters and the first batch."""
        fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        validation, steps = epoch.val_loop, trainer.global_step
        fit._load_combined_loader_states()
        if not epoch.restarting:
            return
        # Lightning counts a logged step when its validation is behind it.
        epoch._batches_that_stepped = steps
        epochs: Any = fit.epoch_progress.current
        if epochs.ready == epochs.processed:
            epoch.restarting = False  # a whole epoch: with max_steps Lightning would close it once more
            return
        assert fit._data_fetcher is not None
        due = epoch._should_check_val_fx(fit._data_fetcher)
        pending = due and self._validated_at != steps
        batches: Any = validation.batch_progress
        batches.reset()
        if pending:
            # To Lightning: a validation cut short in its first batch, which it begins again.
            batches.total.ready = batches.total.started = 1
        if epoch._num_ready_batches_reached() and not pending:
            validation._has_run = True  # nothing is left of the epoch but its closing
        elif due:
            epoch._batches_that_stepped -= 1  # Lightning comes by this place once more, validating or not
        epoch.update_restart_stage()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch of which only the closing was left does not turn Lightning's mark off."""
        trainer.fit_loop.epoch_loop.restarting = False
