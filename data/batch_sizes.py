"""How a step is cut: by count or by padded seconds, and what each rank accumulates of it.

By count a step has `global_batch_size` utterances over all ranks, in micro-batches of `per_device_batch_size`. By
padded seconds it has `micro_batches_per_step` micro-batches over all ranks, each at most `seconds_per_batch` (longest
x number).
"""

from dataclasses import dataclass

from data.epoch_plan import EpochPlan, Seconds, plan_by_count, plan_by_seconds


@dataclass(frozen=True)
class BatchSizes:
    """Either the first two or the last two are given. Raises ValueError for any other combination."""

    global_batch_size: int | None = None
    per_device_batch_size: int | None = None
    seconds_per_batch: float | None = None
    micro_batches_per_step: int | None = None

    def __post_init__(self) -> None:
        count = {"global_batch_size": self.global_batch_size, "per_device_batch_size": self.per_device_batch_size}
        seconds = {"seconds_per_batch": self.seconds_per_batch, "micro_batches_per_step": self.micro_batches_per_step}
        wanted, other = (count, seconds) if self.seconds_per_batch is None else (seconds, count)
        if unwanted := [name for name, value in other.items() if value is not None]:
            raise ValueError(
                f"{unwanted[0]} is given together with {' and '.join(wanted)}; set {' and '.join(other)} to null, "
                "since a step is either a number of utterances or a number of micro-batches of padded seconds."
            )
        for name, value in wanted.items():
            if value is None or value <= 0:
                raise ValueError(f"{name} is {value}; give {' and '.join(wanted)}, both above zero.")

    def accumulate_grad_batches(self, world_size: int) -> int:
        """Micro-batches that a rank accumulates for a step. Raises ValueError where a step does not divide."""
        if self.micro_batches_per_step is not None:
            if self.micro_batches_per_step % world_size:
                raise ValueError(
                    f"micro_batches_per_step {self.micro_batches_per_step} does not divide among {world_size} ranks; "
                    f"set it to a multiple of {world_size}."
                )
            return self.micro_batches_per_step // world_size
        assert self.global_batch_size is not None
        assert self.per_device_batch_size is not None
        at_once = self.per_device_batch_size * world_size
        if self.global_batch_size % at_once:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} is not a multiple of per_device_batch_size "
                f"{self.per_device_batch_size} x {world_size} ranks = {at_once}; change one of them so that it is."
            )
        return self.global_batch_size // at_once

    def plan(self, durations: Seconds, *, seed: int, epoch: int, sorted_first_epoch: bool) -> EpochPlan:
        """The plan of an epoch over rows of these durations."""
        if self.seconds_per_batch is not None:
            assert self.micro_batches_per_step is not None
            return plan_by_seconds(
                durations,
                seed=seed,
                epoch=epoch,
                seconds_per_batch=self.seconds_per_batch,
                micro_batches_per_step=self.micro_batches_per_step,
                sorted_first_epoch=sorted_first_epoch,
            )
        assert self.global_batch_size is not None
        assert self.per_device_batch_size is not None
        return plan_by_count(
            durations,
            seed=seed,
            epoch=epoch,
            global_batch_size=self.global_batch_size,
            per_device_batch_size=self.per_device_batch_size,
            sorted_first_epoch=sorted_first_epoch,
        )
