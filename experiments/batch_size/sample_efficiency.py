"""How many samples and steps a batch size needs to reach a loss, from runs' dev curves; and the trade-off they follow.

    samples(B) = samples_min (1 + B / B_crit),   steps(B) = steps_min (1 + B_crit / B)

(McCandlish et al. 2018, "An empirical model of large-batch training", eq. 2.11): below B_crit a larger batch saves
steps for nothing, above it samples are wasted. Samples are counted as trained: steps times batch, repeats included.
Between two validations a loss is taken to fall on a line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Trained:
    """One run: its place in the grid, how it ended, and its dev loss by optimiser step."""

    global_batch_size: int
    learning_rate: float
    seed: int
    status: str
    reason: str | None
    val_loss: tuple[tuple[float, float], ...]
    val_wer: float | None
    folder: str

    @property
    def lowest_loss(self) -> float | None:
        """The lowest dev loss; None where the run diverged, failed or never validated."""
        return min((loss for _, loss in self.val_loss), default=None) if self.status == "finished" else None


@dataclass(frozen=True)
class Tuned:
    """One batch size at its best learning rate: means over the seeds. None where a seed did not reach the target.

    `upper_bound`: a seed was below the target at its first validation already, so it may have needed less.
    """

    global_batch_size: int
    learning_rate: float
    at_edge: bool
    seeds: int
    lowest_loss: float
    steps_to_target: float | None
    samples_to_target: float | None
    low_samples: float | None
    high_samples: float | None
    upper_bound: bool


def steps_to(curve: Curve, target: float) -> float | None:
    """The step at which the loss first is at `target` or below; None where it never is.

    Where the first validation is below already, its step: an upper bound.
    """
    before: tuple[float, float] | None = None
    for step, loss in curve:
        if loss <= target:
            if before is None or before[1] == loss:
                return step
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (step - before[0])
        before = step, loss
    return None


def reachable_target(runs: Sequence[Trained]) -> float:
    """The lowest loss that every batch size reached at some learning rate with all its seeds.

    Raises ValueError where a batch size has no finished run.
    """
    worst = []
    for size in sorted({run.global_batch_size for run in runs}):
        reached = [loss for rate in _rates(runs, size) if (loss := _worst_seed(runs, size, rate)) is not None]
        if not reached:
            raise ValueError(
                f"No run with a batch of {size} finished, so no common target loss can be chosen; look at the runs' "
                "log.txt, or give --target-loss."
            )
        worst.append(min(reached))
    return max(worst)


def tune(runs: Sequence[Trained], target: float) -> list[Tuned]:
    """Each batch size at the learning rate that needs the fewest samples, by ascending batch size.

    Where no rate reaches the target the one with the lowest loss stands, without samples; a size with no finished run
    is left out. `at_edge` says that the best rate is the grid's first or last: a wider grid may do better.
    """
    found = []
    grid = sorted({run.learning_rate for run in runs})
    for size in sorted({run.global_batch_size for run in runs}):
        options = [one for rate in _rates(runs, size) if (one := _at(runs, size, rate, target, grid)) is not None]
        if options:
            found.append(
                min(options, key=lambda o: (o.samples_to_target is None, o.samples_to_target or 0.0, o.lowest_loss))
            )
    return found


def critical_batch(curve: Sequence[Tuned]) -> tuple[float, float] | None:
    """(samples_min, B_crit) by least squares on relative errors; B_crit is infinite where samples do not grow.

    None for fewer than three batch sizes that reached the target.
    """
    points = [(one.global_batch_size, one.samples_to_target) for one in curve if one.samples_to_target]
    if len(points) < 3:
        return None
    # samples = a + b B, each row divided by the measured samples.
    rows = [(1 / samples, size / samples) for size, samples in points]
    aa, ab, bb = (sum(p * q for p, q in pairs) for pairs in _pairs(rows))
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    a, b = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if b <= 0:
        return a1 / aa, math.inf
    if a <= 0:
        return 0.0, 0.0
    return a, a / b


def row(run: Trained, target: float, tuned: Sequence[Tuned]) -> dict[str, Any]:
    """A run as one row of table.csv."""
    steps = steps_to(run.val_loss, target) if run.status == "finished" else None
    return {
        "global_batch_size": run.global_batch_size,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "status": run.status,
        "best": any(
            (one.global_batch_size, one.learning_rate) == (run.global_batch_size, run.learning_rate) for one in tuned
        ),
        "steps_to_target": steps,
        "samples_to_target": None if steps is None else steps * run.global_batch_size,
        "lowest_val_loss": run.lowest_loss,
        "final_val_loss": run.val_loss[-1][1] if run.val_loss else None,
        "val_wer": run.val_wer,
        "steps": run.val_loss[-1][0] if run.val_loss else None,
        "reason": run.reason,
        "folder": run.folder,
    }


def _rates(runs: Sequence[Trained], size: int) -> list[float]:
    return sorted({run.learning_rate for run in runs if run.global_batch_size == size})


def _seeds(runs: Sequence[Trained], size: int, rate: float) -> list[Trained]:
    return [run for run in runs if (run.global_batch_size, run.learning_rate) == (size, rate)]


def _worst_seed(runs: Sequence[Trained], size: int, rate: float) -> float | None:
    losses = [run.lowest_loss for run in _seeds(runs, size, rate)]
    return None if None in losses else max(loss for loss in losses if loss is not None)


def _at(runs: Sequence[Trained], size: int, rate: float, target: float, grid: Sequence[float]) -> Tuned | None:
    seeds = _seeds(runs, size, rate)
    losses = [loss for run in seeds if (loss := run.lowest_loss) is not None]
    if len(losses) < len(seeds):
        return None
    steps = [reached for run in seeds if (reached := steps_to(run.val_loss, target)) is not None]
    all_reached = len(steps) == len(seeds)
    return Tuned(
        global_batch_size=size,
        learning_rate=rate,
        at_edge=len(grid) > 1 and rate in (grid[0], grid[-1]),
        seeds=len(seeds),
        lowest_loss=fmean(losses),
        steps_to_target=fmean(steps) if all_reached else None,
        samples_to_target=fmean(steps) * size if all_reached else None,
        low_samples=min(steps) * size if all_reached else None,
        high_samples=max(steps) * size if all_reached else None,
        upper_bound=any(run.val_loss[0][1] <= target for run in seeds),
    )


def _pairs(rows: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    return [[(a, a) for a, _ in rows], [(a, b) for a, b in rows], [(b, b) for _, b in rows]]
