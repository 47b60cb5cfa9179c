"""What the data side asks of Lightning's Trainer, and the one place that reaches into its loops.

Written against pytorch-lightning 2.6: `fit_loop.epoch_progress` counts epochs, `fit_loop.epoch_loop.batch_progress` the
micro-batches of a rank, in `current` (this epoch) and `total`.
"""

from typing import Any


def check_trainer(trainer: Any, *, accumulate: int, steps_vary: bool) -> None:
    """Raise ValueError for settings under which the trainer would not show what was planned.

    `accumulate`: micro-batches of a rank in a step; `steps_vary`: epochs differ in their number of steps.
    """
    if trainer.accumulate_grad_batches != accumulate:
        raise ValueError(
            f"The trainer accumulates {trainer.accumulate_grad_batches} micro-batches and a step of the data has "
            f"{accumulate} a rank; set trainer.accumulate_grad_batches to {accumulate}, or change the batch sizes."
        )
    if trainer.overfit_batches:
        raise ValueError("overfit_batches would replace the sampler of the data; use limit_train_batches instead.")
    if steps_vary and trainer.reload_dataloaders_every_n_epochs != 1:
        raise ValueError(
            "With seconds_per_batch and speeds the number of steps differs from epoch to epoch; "
            "set trainer.reload_dataloaders_every_n_epochs to 1."
        )


def epoch_of(trainer: Any) -> int:
    """The epoch that the trainer trains next, also while it resumes."""
    epoch: int = trainer.fit_loop.epoch_progress.current.processed
    return epoch


def move_position(trainer: Any, micro_batches_then: int, micro_batches_now: int) -> None:
    """Let Lightning's count of a rank's micro-batches be that of the position that is resumed.

    With another number of ranks the same position has another count: Lightning would end the epoch too early or too
    late.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    for counts in (progress.current, progress.total):
        for name in ("ready", "started", "processed", "completed"):
            setattr(counts, name, getattr(counts, name) + micro_batches_now - micro_batches_then)
