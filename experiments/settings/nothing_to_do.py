"""Settings with which `fit` would train nothing, or have no checkpoint to choose: each one sentence, told at the start.

Each setting is allowed by itself, and Lightning would end such a run at once as one that finished.
"""

from collections.abc import Mapping
from typing import Any

from experiments.report.table import look_up

NO_STEP = "no step would be trained"
NO_BEST = "no checkpoint would be the best by val/wer, and none tested"
# Setting, the value that leaves nothing to do, what would be missing, what to do.
IDLE: tuple[tuple[str, Any, str, str], ...] = (
    ("data.train_manifest", None, NO_STEP, "name the training manifest"),
    ("data.val_manifest", None, NO_BEST, "name the manifest of a dev set"),
    ("trainer.max_epochs", 0, NO_STEP, "give at least 1, or -1 for no limit"),
    ("trainer.max_steps", 0, NO_STEP, "give at least 1, or -1 for no limit"),
    ("trainer.limit_train_batches", 0, NO_STEP, "give batches from 1, a share up to 1.0, or null for all"),
    ("trainer.limit_val_batches", 0, NO_BEST, "give batches from 1, a share up to 1.0, or null for all"),
    ("trainer.max_time", "00:00:00:00", NO_STEP, "give days:hours:minutes:seconds, as 00:00:15:00, or null"),
)


def check_something_to_do(config: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting of a resolved config of `fit` that leaves nothing to do."""
    for key, idle, missing, remedy in IDLE:
        value = look_up(config, key)
        if value == idle and (value is None) == (idle is None):
            said = "null" if value is None else value
            raise ValueError(f"{key} is {said}: {missing}; {remedy}")
