"""Compile kernels ahead of their first use, without a GPU, several at a time.

The cache key holds neither torch nor driver, so a folder filled here can be carried to the machine with the GPU and
named there in ``PRNN_EXT_CACHE``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from prnn_ext import compiler, tiles

GPUS = {
    "sm_80": tiles.Gpu(multiprocessors=108, shared_bytes=163 * 1024, cautious=True),
    "sm_86": tiles.Gpu(multiprocessors=84, shared_bytes=99 * 1024, cautious=True),
    "sm_89": tiles.Gpu(multiprocessors=128, shared_bytes=99 * 1024, cautious=True),
    "sm_90a": tiles.Gpu(multiprocessors=132),
    "sm_100a": tiles.Gpu(multiprocessors=148, cautious=True),
}
"""The largest GPU of each architecture: A100, A40, L40S, H100 and H200, B200."""
SIDES = {"sm_90a": (tiles.SIDES["NVIDIA H200"],)}
"""Sides of L2 that some GPU of the architecture is known to have."""


@dataclass(frozen=True)
class Job:
    """One kernel: a layer's half at one size; ``batch_size`` decides its tiles only."""

    hidden_size: int
    batch_size: int
    dtype: str
    activation: str
    backward: bool
    arch: str

    def __str__(self) -> str:
        half = "backward" if self.backward else "forward"
        return f"{self.arch} {self.hidden_size} x {self.batch_size} {self.dtype} {self.activation} {half}"


@dataclass(frozen=True)
class Built:
    """What became of a job: ``error`` is a sentence, or None with seconds and bytes spilled per thread."""

    job: Job
    seconds: float = 0.0
    spilled_bytes: int = 0
    registers: int = 0
    error: str | None = None


def jobs(
    sizes: Sequence[int], batches: Sequence[int], dtypes: Sequence[str], activations: Sequence[str], arch: str
) -> list[Job]:
    """Every combination, forward and backward; raises ``ValueError`` for a name that is unknown."""
    known = {"arch": GPUS, "dtype": tiles.DTYPES, "activation": tiles.ACTIVATIONS}
    for kind, names in (("arch", [arch]), ("dtype", dtypes), ("activation", activations)):
        for name in names:
            if name not in known[kind]:
                raise ValueError(f"{kind} is {name!r}; choose one of {', '.join(known[kind])}.")
    grid = product(sizes, batches, dtypes, activations, (False, True))
    return [Job(*chosen, arch=arch) for chosen in grid]


def build(
    wanted: Sequence[Job],
    cache: Path | None = None,
    workers: int | None = None,
    extra: Mapping[str, int] | None = None,
) -> Iterator[Built]:
    """Compile each job in one of ``workers`` processes (all processors if None), yielding as they end.

    ``extra``: macros of test variants.
    """
    count = min(workers or os.cpu_count() or 1, max(len(wanted), 1))
    # Spawned, not forked: a fork of a process that holds torch's threads may hang.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(build_one, job, cache, extra) for job in wanted]):
            yield done.result()


def build_one(job: Job, cache: Path | None = None, extra: Mapping[str, int] | None = None) -> Built:
    """Compile one job, or find it in the cache, for GPUs with known sides of L2 and for others."""
    started = time.perf_counter()
    try:
        chosen = tiles.choose_tiles(job.hidden_size, job.batch_size, job.dtype, job.backward, GPUS[job.arch])
        built = [
            compiler.compile_cubin("recurrence.cu", {**split.defines(job.activation), **(extra or {})}, job.arch, cache)
            for split in {chosen: 0, **{chosen.with_sides(sides): 0 for sides in SIDES.get(job.arch, ())}}
        ]
    except (ValueError, compiler.CompilationError, compiler.CompilerMissingError) as error:
        return Built(job, error=str(error))
    resources = [used for cubin in built for used in cubin.resources.values()]
    return Built(
        job,
        time.perf_counter() - started,
        max(r.spill_stores + r.spill_loads for r in resources),
        max(r.registers for r in resources),
    )
