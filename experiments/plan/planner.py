"""The three effects as one decision: how many GPUs, which per-GPU batch, how much accumulation.

A candidate is n GPUs x b utterances x a micro-batches. It is possible where

    effect 2   memory(b) <= the GPU's memory less a reserve
    effect 3   least <= n b a <= most algorithmic batch

and costs `samples / (n b a) * step_time(n, b, a)`, in which effect 1 lives: below some b the step gets no faster. The
fewest hours win; within `CLOSE` of them the fewest GPUs, then the smallest algorithmic batch.

Which effect binds is found by taking each away in turn: the one whose absence would save the most hours. Without effect
1 an utterance costs as little at any b as at the best one; without effect 2 memory is endless; without effect 3 any
algorithmic batch will do; without communication the interconnect is perfect; with more GPUs there are twice as many.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.scaling.communication import all_reduce_seconds
from experiments.scaling.interconnects import Interconnect
from experiments.scaling.step_model import Bucket, Compute, StepTime, step_time

CLOSE = 0.02
BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
EFFECTS = {
    "effect 1": "small mini-batches run the GPU empty",
    "effect 2": "activation memory",
    "effect 3": "the algorithmic batch",
    "interconnect": "the all-reduce",
    "GPUs": "the number of GPUs",
}


@dataclass(frozen=True)
class Problem:
    """All that a plan is made of. Bytes, seconds and utterances; `memory(b)` is the peak at a per-GPU batch of b.

    `sample_factor(G)` says how many times the samples of a small batch an algorithmic batch G needs.
    """

    compute: Compute
    buckets: tuple[Bucket, ...]
    net: Interconnect
    most_gpus: int
    memory: Callable[[int], int]
    memory_limit: float
    least_batch: int
    most_batch: int
    utterances: float
    sample_factor: Callable[[int], float] = lambda _: 1.0
    perfect_network: bool = False


@dataclass(frozen=True)
class Candidate:
    """One way to train. `reasons` say why it is impossible; hours are to the end of training."""

    gpus: int
    batch_size: int
    accumulation: int
    step: StepTime
    hours: float
    memory_bytes: int
    reasons: tuple[str, ...]

    @property
    def global_batch_size(self) -> int:
        """The algorithmic batch."""
        return self.gpus * self.batch_size * self.accumulation


@dataclass(frozen=True)
class Decision:
    """The best candidate, what each effect costs (share of the hours that its absence would save), and which binds."""

    best: Candidate
    gains: dict[str, float]
    binding: str
    candidates: tuple[Candidate, ...]


def decide(problem: Problem) -> Decision:
    """The plan. Raises ValueError where nothing is possible, with what to change."""
    candidates = tuple(search(problem))
    best = choose(candidates)
    if best is None:
        raise ValueError(impossible(problem))
    gains = {name: _gain(best, problem, name) for name in EFFECTS}
    binding = max(gains, key=lambda name: gains[name])
    return Decision(best, gains, binding if gains[binding] > 0.01 else "nothing", candidates)


def search(problem: Problem) -> Iterable[Candidate]:
    """Every GPU count (powers of two, and all of them) x batch size, each at its best accumulation."""
    for gpus in gpu_counts(problem.most_gpus):
        for size in batch_sizes(problem.compute):
            options = [evaluate(problem, gpus, size, count) for count in _accumulations(problem, gpus * size)]
            yield min(options, key=lambda one: (bool(one.reasons), one.hours, one.accumulation))


def evaluate(problem: Problem, gpus: int, batch_size: int, accumulation: int) -> Candidate:
    """One candidate, possible or not."""
    reasons = []
    memory = problem.memory(batch_size)
    global_batch = gpus * batch_size * accumulation
    if memory > problem.memory_limit:
        reasons.append("effect 2")
    if not problem.least_batch <= global_batch <= problem.most_batch:
        reasons.append("effect 3")
    reduce_time = (lambda _: 0.0) if problem.perfect_network else _all_reduce(gpus, problem.net)
    step = step_time(problem.compute, batch_size, problem.buckets, reduce_time, accumulation=accumulation)
    steps = problem.utterances * problem.sample_factor(global_batch) / global_batch
    return Candidate(
        gpus, batch_size, accumulation, step, steps * step.total / 3600, memory, tuple(dict.fromkeys(reasons))
    )


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """The best possible candidate, None where none is possible."""
    possible = [one for one in candidates if not one.reasons]
    if not possible:
        return None
    fewest = min(one.hours for one in possible)
    close = [one for one in possible if one.hours <= fewest * (1 + CLOSE)]
    return min(close, key=lambda one: (one.gpus, one.global_batch_size, one.hours))


def impossible(problem: Problem) -> str:
    """One sentence on why nothing is possible: since one GPU can accumulate any batch, it is memory."""
    smallest = min(batch_sizes(problem.compute))
    need, have = problem.memory(smallest) / 2**30, problem.memory_limit / 2**30
    return (
        f"A batch of {smallest} needs {need:.1f} GiB and {have:.1f} GiB of the GPU may be used; take fewer layers, a "
        "smaller width, --policy recompute or a GPU with more memory."
    )


def gpu_counts(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`, and `most` itself."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def batch_sizes(compute: Compute) -> list[int]:
    """Per-GPU batches looked at: none beyond the largest whose time is known."""
    return [size for size in BATCH_SIZES if size <= compute.batch_sizes[-1]] or [compute.batch_sizes[0]]


def without(problem: Problem, effect: str) -> Problem:
    """The problem with one effect taken away."""
    if effect == "effect 1":
        return replace(problem, compute=_never_empty(problem.compute))
    if effect == "effect 2":
        return replace(problem, memory_limit=float("inf"))
    if effect == "effect 3":
        return replace(problem, least_batch=1, most_batch=10**9, sample_factor=lambda _: 1.0)
    if effect == "interconnect":
        return replace(problem, perfect_network=True)
    return replace(problem, most_gpus=2 * problem.most_gpus)


def _gain(best: Candidate, problem: Problem, effect: str) -> float:
    found = choose(search(without(problem, effect)))
    return 0.0 if found is None else max(0.0, 1 - found.hours / best.hours)


def _never_empty(compute: Compute) -> Compute:
    """The same device at the best measured speed an utterance, whatever the batch."""
    sizes = batch_sizes(compute)
    best = min(sizes, key=lambda size: sum(compute.at(size)) / size)
    forward, backward = (seconds / best for seconds in compute.at(best))
    ends = (1, compute.batch_sizes[-1])
    return Compute(ends, tuple(forward * e for e in ends), tuple(backward * e for e in ends), compute.optimizer)


def _accumulations(problem: Problem, per_micro_batch: int) -> Sequence[int]:
    """Micro-batches worth looking at: the fewest and the most that the algorithmic batch allows, and powers of two."""
    least = max(1, -(-problem.least_batch // per_micro_batch))
    # Beyond a few dozen micro-batches the communication is negligible, and steps only get fewer.
    most = max(1, min(problem.most_batch, 64 * per_micro_batch) // per_micro_batch)
    powers = {2**power for power in range(most.bit_length()) if least <= 2**power <= most}
    return sorted(powers | {least, max(least, most)})


def _all_reduce(gpus: int, net: Interconnect) -> Callable[[int], float]:
    return lambda size: all_reduce_seconds(size, gpus, net)
