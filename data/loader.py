"""A loader that goes on where a checkpoint left off: exactly, at once, with any number of workers and ranks.

The sampler is read in the training process and workers get whole micro-batches, so the state needs to know nothing of
workers: it is the epoch, the steps that were *handed out* (not those that workers have read ahead), and a fingerprint
of what the order was computed from. The rank does not appear in it: Lightning keeps the state of rank 0 alone.

Within a step gradients are still being accumulated, and they are in no checkpoint; such a checkpoint goes back to the
start of its step.
"""

import signal
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from data.batch import Batch
from data.dataset import SpeechDataset
from data.sampler import TrainingSampler


class ResumableLoader(DataLoader[Batch]):
    """A DataLoader over a TrainingSampler, with `state_dict` and `load_state_dict` that Lightning finds.

    `on_resume(micro_batches_then, micro_batches_now)` is told, when a state is loaded, how many micro-batches a rank
    had done when it was saved and how many that is now: they differ where the number of ranks has changed.
    """

    def __init__(
        self,
        dataset: SpeechDataset,
        sampler: TrainingSampler,
        *,
        fingerprint: str,
        on_resume: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, batch_size=None, sampler=sampler, **options)
        self._sampler = sampler
        self._fingerprint = fingerprint
        self._on_resume = on_resume
        self._epoch = 0
        self._done = 0

    @property
    def order(self) -> TrainingSampler:
        """The sampler, by its own type."""
        return self._sampler

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # A generator: Lightning makes the iterator before it calls set_epoch, and nothing may be read before that.
        self._epoch = self._sampler.epoch
        self._done = self._sampler.start_step * self._sampler.micro_batches_per_step
        for batch in super().__iter__():
            self._done += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Plain values: epoch, steps handed out, micro-batches of a rank, fingerprint."""
        per_step = self._sampler.micro_batches_per_step
        return {
            "epoch": self._epoch,
            "step": self._done // per_step,
            "micro_batches": self._done,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises ValueError where the data or the options of the order are others."""
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                "The checkpoint was made on other training data, or with another seed, batch size or speeds, so the "
                "epoch cannot go on exactly; give the same settings, or start a new run from the checkpoint's weights."
            )
        self._sampler.start_at(state["epoch"], state["step"])
        self._epoch = state["epoch"]
        self._done = state["step"] * self._sampler.micro_batches_per_step
        if self._on_resume is not None:
            self._on_resume(state["micro_batches"], self._done)


def outlive_one_signal(worker: int) -> None:
    """For `worker_init_fn`: a scheduler's SIGTERM goes to the whole process group, and the training process still needs
    its workers to end its step. A second one, or the end of the training process, ends them."""

    def first(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, first)
