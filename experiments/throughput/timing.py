"""Fair timing: contestants in turn, round after round, in one process; medians with their spread.

Shared machines drift: a figure measured alone says little, so contestants alternate and only figures of one run are
compared. On CUDA each sample is the mean of enough launches to last `sample_seconds`, between two device events; on CPU
between two clock reads.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds for one call: median, lowest and highest sample."""

    median: float
    low: float
    high: float
    samples: int


def alternate(
    contestants: Mapping[str, Callable[[], object]],
    *,
    device: torch.device,
    rounds: int = 7,
    sample_seconds: float = 0.02,
) -> dict[str, Timing]:
    """Time every contestant `rounds` times, taking turns; seconds per call."""
    calls = {name: _calls_per_sample(call, device, sample_seconds) for name, call in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            samples[name].append(_seconds(call, calls[name], device) / calls[name])
    return {
        name: Timing(statistics.median(values), min(values), max(values), len(values))
        for name, values in samples.items()
    }


def _calls_per_sample(call: Callable[[], object], device: torch.device, sample_seconds: float) -> int:
    call()  # compilation, allocator and handles stay out of the figures
    once = _seconds(call, 1, device)
    return max(1, min(1000, round(sample_seconds / max(once, 1e-7))))


def _seconds(call: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
