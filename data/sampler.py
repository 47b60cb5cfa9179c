"""The micro-batches of one rank, epoch after epoch, from plans that every rank computes for itself.

Lightning calls `set_epoch` on `loader.sampler`; nothing else has to be told. Both are DistributedSamplers to it, so
that it does not put one of its own (which would shard again, and repeat utterances in evaluation) around them. A
position is counted in steps of the whole run's epoch, not of the rank: it means the same to any rank of any number of
ranks.
"""

import ctypes
from collections.abc import Callable, Iterator

from torch.utils.data import DistributedSampler

from data.corpus import Corpus
from data.dataset import MicroBatch
from data.epoch_plan import EpochPlan, Rows, plan_evaluation

LARGE = 1_000_000  # rows


def _give_memory_back() -> None:
    """glibc keeps what was freed for later: 85 MB after the plan of 6,000,000 rows, which itself takes 36 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class TrainingSampler(DistributedSampler[MicroBatch]):
    """Rank `rank` of `world_size`: of each step the micro-batches rank, rank + world_size, ...

    `plan` maps an epoch to its EpochPlan.
    """

    def __init__(self, corpus: Corpus, plan: Callable[[int], EpochPlan], *, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(corpus, num_replicas=world_size, rank=rank, shuffle=False)  # type: ignore[arg-type]
        self._plan_of = plan
        self._planned: tuple[int, EpochPlan] | None = None
        self._start = (0, 0)

    @property
    def plan(self) -> EpochPlan:
        """The plan of the current epoch."""
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = None  # one plan at a time
            self._planned = (self.epoch, self._plan_of(self.epoch))
            if len(self._planned[1].rows) > LARGE:
                _give_memory_back()
        return self._planned[1]

    @property
    def micro_batches_per_step(self) -> int:
        """Micro-batches of this rank in a step: the accumulation."""
        return self.plan.micro_batches_per_step // self.num_replicas

    def start_at(self, epoch: int, step: int) -> None:
        """Let the next iteration of `epoch` begin at `step`; later ones, and other epochs, begin at 0."""
        self.set_epoch(epoch)
        self._start = (epoch, step)

    @property
    def start_step(self) -> int:
        """The step at which the next iteration begins."""
        epoch, step = self._start
        return step if epoch == self.epoch else 0

    def __len__(self) -> int:
        """Micro-batches of this rank in the whole epoch, wherever the iteration starts."""
        return len(self.plan) * self.micro_batches_per_step

    def __iter__(self) -> Iterator[MicroBatch]:
        plan, epoch, first = self.plan, self.epoch, self.start_step
        self._start = (0, 0)
        for step in range(first, len(plan)):
            micro_batches = plan.step(step)
            utterances = sum(map(len, micro_batches))
            for rows in micro_batches[self.rank :: self.num_replicas]:
                yield MicroBatch(rows, epoch, utterances)


class EvaluationSampler(DistributedSampler[MicroBatch]):
    """The batches of this rank in an evaluation, the same each time; the step is the batch."""

    def __init__(self, corpus: Corpus, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(corpus, num_replicas=world_size, rank=rank, shuffle=False)  # type: ignore[arg-type]
        self._batches: list[Rows] = plan_evaluation(corpus.durations, world_size=world_size, batch_size=batch_size)[
            rank
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[MicroBatch]:
        return (MicroBatch(rows, 0, len(rows)) for rows in self._batches)
