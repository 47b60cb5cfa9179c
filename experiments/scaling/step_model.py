"""How long one data-parallel training step takes: compute, all-reduce, and how much of it hides behind the backward.

DDP gathers gradients into buckets as the backward makes them and reduces one bucket after the other beside it:

    end_i  = max(end_{i-1}, forward + ready_i * backward) + all_reduce(bytes_i)
    step   = max(forward + backward, end_last) + contention * hidden + overhead + optimizer

`ready_i` is the share of the backward after which bucket i is whole. `hidden` is the communication that ran beside
compute; it is not free where both use the same cores (`contention` 1 on a CPU that computes and copies with the same
threads, near 0 with multiprocessors left to NCCL). `contention` and `overhead` are fitted to measured steps.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIB = 2**20
# torch's DistributedDataParallel: the first bucket is small so that communication starts early.
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True)
class Bucket:
    """Gradients reduced together: their bytes, and the share of the backward after which the last of them is there."""

    size: int
    ready: float


@dataclass(frozen=True)
class Compute:
    """Seconds of compute of one micro-batch by per-GPU batch size, ascending, and of one optimiser step."""

    batch_sizes: tuple[int, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    optimizer: float

    def at(self, batch_size: float) -> tuple[float, float]:
        """(forward, backward) between measured sizes on a line, beyond the largest on its continuation.

        Below the smallest the smallest's time stands: it is the floor that effect 1 is about.
        """
        return _interpolate(self.batch_sizes, self.forward, batch_size), _interpolate(
            self.batch_sizes, self.backward, batch_size
        )

    def without(self, batch_size: int) -> "Compute":
        """The table less one measured size: for predicting it."""
        kept = [i for i, size in enumerate(self.batch_sizes) if size != batch_size]
        return Compute(
            tuple(self.batch_sizes[i] for i in kept),
            tuple(self.forward[i] for i in kept),
            tuple(self.backward[i] for i in kept),
            self.optimizer,
        )


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: `compute` of all micro-batches, `exposed` all-reduce, `hidden` all-reduce beside compute."""

    compute: float
    exposed: float
    hidden: float
    extra: float
    optimizer: float

    @property
    def total(self) -> float:
        """All that the clock sees."""
        return self.compute + self.exposed + self.extra + self.optimizer


@dataclass(frozen=True)
class Overlap:
    """What hiding costs: `contention` seconds a hidden second, `overhead` seconds a step; nothing where ideal."""

    contention: float = 0.0
    overhead: float = 0.0


def step_time(
    compute: Compute,
    batch_size: float,
    buckets: Sequence[Bucket],
    all_reduce: Callable[[int], float],
    *,
    overlap: Overlap = Overlap(),
    accumulation: int = 1,
) -> StepTime:
    """One optimiser step of `accumulation` micro-batches of `batch_size`; `all_reduce(bytes)` gives seconds.

    Only the last micro-batch's backward communicates. Raises ValueError for accumulation below 1.
    """
    if accumulation < 1:
        raise ValueError(f"accumulation {accumulation} was given; a step has at least 1 micro-batch.")
    forward, backward = compute.at(batch_size)
    end = 0.0
    hidden = 0.0
    for bucket in buckets:
        begin = max(end, forward + bucket.ready * backward)
        end = begin + all_reduce(bucket.size)
        hidden += max(0.0, min(end, forward + backward) - begin)
    exposed = max(0.0, end - (forward + backward))
    communicates = any(all_reduce(bucket.size) for bucket in buckets)
    extra = overlap.contention * hidden + (overlap.overhead if communicates else 0.0)
    return StepTime(accumulation * (forward + backward), exposed, hidden, extra, compute.optimizer)


def fit_overlap(measured: Sequence[tuple[float, StepTime]]) -> Overlap:
    """Contention and overhead from (measured seconds, ideal prediction) pairs, by least squares on relative errors.

    With one pair, or where every step hides the same share, the difference counts as overhead alone. Raises ValueError
    for none.
    """
    if not measured:
        raise ValueError("No measured step was given to fit the overlap to; measure at least one on two devices.")
    # Rows of (hidden, 1, lacking) over the measured time.
    rows = [(ideal.hidden / t, 1 / t, (t - ideal.total) / t) for t, ideal in measured]
    hh, h1, hl = (sum(a * b for a, b in pairs) for pairs in _products(rows))
    oo = sum(one * one for _, one, _ in rows)
    ol = sum(one * lacking for _, one, lacking in rows)
    determinant = hh * oo - h1 * h1
    if determinant > 1e-9 * hh * oo:
        contention, overhead = (hl * oo - ol * h1) / determinant, (hh * ol - h1 * hl) / determinant
        if contention >= 0 and overhead >= 0:
            return Overlap(contention, overhead)
        if contention < 0:
            return Overlap(0.0, max(0.0, ol / oo))
        return Overlap(max(0.0, hl / hh), 0.0)
    return Overlap(0.0, max(0.0, ol / oo))


def _products(rows: Sequence[tuple[float, float, float]]) -> list[list[tuple[float, float]]]:
    return [[(h, h) for h, _, _ in rows], [(h, one) for h, one, _ in rows], [(h, lack) for h, _, lack in rows]]


def buckets_of(
    gradients: Sequence[tuple[int, float]], first: int = FIRST_BUCKET_BYTES, cap: int = BUCKET_BYTES
) -> list[Bucket]:
    """DDP's buckets from (bytes, ready) of each parameter in the order its gradient is made.

    A bucket closes once it holds `cap` bytes or more (`first` for the first one), as in torch's reducer.
    """
    buckets: list[Bucket] = []
    size, ready = 0, 0.0
    for number_of_bytes, moment in gradients:
        size, ready = size + number_of_bytes, max(ready, moment)
        if size >= (cap if buckets else first):
            buckets.append(Bucket(size, ready))
            size, ready = 0, 0.0
    return [*buckets, Bucket(size, ready)] if size else buckets


def uniform_gradients(layers: int, layer_bytes: int, rest_bytes: int = 0) -> list[tuple[int, float]]:
    """Gradients of `layers` equal layers made at equal intervals, two matrices each; `rest_bytes` at the end."""
    made = [(layer_bytes // 2, (i + 1) / layers) for i in range(layers) for _ in range(2)]
    return [*made, (rest_bytes, 1.0)] if rest_bytes else made


def _interpolate(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    if len(xs) == 1 or x <= xs[0]:
        return ys[0]
    right = min(max(1, bisect_left(xs, x)), len(xs) - 1)
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
