"""Builds, checks and times the persistent kernel on a GPU, several stages in one run.

    python tests/gpu/kernel_bench.py required waits sizes batches candidates rivals sides

Each time is the median of CUDA-event timings of queued launches, divided by the time steps. Results are compared with
float64 just before: ``|| out - truth || / || truth ||`` must stay below twice that of plain PyTorch in the same dtype
(``candidates`` and ``waits``, which only rank variants, leave this out). With BUILD=1 it compiles the same kernels
without a GPU, into $PRNN_EXT_CACHE, and reports spills (BUILD_FIRST=3: the first three alone). PRNN_RESULT names a file
for the figures as JSON.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch

from prnn_ext import gradients, persistent, tiles
from tests.gpu.rivals import best_splits, rivals, sides
from tests.gpu.timed_launch import (
    BUILD,
    DEVICE,
    ROWS,
    T,
    compile_all,
    gpu,
    microseconds,
    plan,
    random_arguments,
    variant,
)

REQUIRED = (
    (1152, 4, "bfloat16"),
    (1152, 4, "float16"),
    (1152, 4, "float32"),
    (1152, 64, "bfloat16"),
    (2304, 4, "bfloat16"),
    (2560, 4, "bfloat16"),
    (4096, 4, "bfloat16"),
    (2560, 4, "float32"),
)


def required():
    """The table of docs/KERNEL.md."""
    for hidden, batch, dtype in REQUIRED:
        halves = [variant(plan(hidden, batch, dtype, backward)) for backward in (False, True)]
        if not BUILD:
            halves.append(weight_gradient(hidden, batch, getattr(torch, dtype)))
            forward, backward, weight = halves
            both, megaflops = sum(halves), 2 * hidden * hidden * batch / 1e6
            print(
                f"  == {hidden} x {batch} {dtype}: forward {forward:.3f}, backward {backward:.3f}, dU {weight:.3f}, "
                f"both {both:.3f} us/step; {megaflops / forward:.1f} and {3 * megaflops / both:.1f} TFLOP/s",
                flush=True,
            )


def weight_gradient(hidden, batch, dtype):
    delta, _ = random_arguments(T, batch, hidden, dtype)
    output = torch.rand_like(delta)
    return microseconds(lambda: gradients.weight_gradient(delta, output, None, None, False), T)


def candidates():
    """The planner's best guesses beside each other, to fit its estimate."""
    for hidden, batch, dtype in (*REQUIRED, (1152, 16, "bfloat16")):
        for backward in (False, True):
            for split in best_splits(hidden, batch, dtype, backward, count=8):
                try:
                    variant(split, steps=512, check=False)
                except RuntimeError as failure:
                    print("FAILED", split, failure, flush=True)


def waits():
    """How long to wait before the first poll (exchange.cuh)."""
    for backward in (False, True):
        for warps in (9, 12):
            split = tiles.make_tiles(1152, 4, "bfloat16", backward, 16, 8, warps).with_sides(gpu().sides)
            for cycles in (300, 400, 450, 500, 550):
                variant(split, check=False, extra=(("PRNN_FIRST_WAIT", cycles),))
        for hidden, batch, longer in (
            (256, 4, (400, 500, 600)),
            (2560, 4, (400, 550, 700)),
            (1152, 64, (400, 700, 1000)),
        ):
            for cycles in longer:
                variant(plan(hidden, batch, backward=backward), check=False, extra=(("PRNN_FIRST_WAIT", cycles),))


def sizes():
    """Every 32nd hidden size from 256 to 2560 at mini-batch 4, and the largest ratio between neighbours."""
    for backward in (False, True):
        times = [variant(plan(hidden, 4, backward=backward), steps=512) for hidden in range(256, 2561, 32)]
        if not BUILD:
            ratio = max(max(a, b) / min(a, b) for a, b in itertools.pairwise(times))
            print(f"  == sizes {'backward' if backward else 'forward'}: neighbours within {ratio:.2f}x", flush=True)


def batches():
    """Mini-batches at 1152."""
    for backward in (False, True):
        for batch in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256):
            variant(plan(1152, batch, backward=backward), steps=512)


STAGES = {stage.__name__: stage for stage in (required, waits, sizes, batches, candidates, rivals, sides)}

if __name__ == "__main__":
    if not BUILD:
        torch.manual_seed(0)
        persistent.wait_limit = 0.5
        print(torch.cuda.get_device_name(0), torch.__version__, flush=True)
        warm = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
        for _ in range(200):
            warm @ warm
        torch.cuda.synchronize()
    for name in sys.argv[1:]:
        started = time.time()
        STAGES[name]()
        print(f"-- {name}: {time.time() - started:.1f} s", flush=True)
        if path := os.environ.get("PRNN_RESULT"):
            Path(path).write_text(json.dumps(ROWS, indent=0))
    if BUILD:
        compile_all()
