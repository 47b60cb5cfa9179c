"""One variant of the kernel: compiled, compared with float64, timed. What the stages of ``kernel_bench.py`` share."""

import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context

import torch

from prnn_ext import compiler, persistent, tiles

WANTED = []
ROWS = []
BUILD = bool(os.environ.get("BUILD"))
DEVICE = "cuda:0"
T = 1024
QUEUED = 4  # launches between two events: the host's time to start one hides behind the one before


def random_arguments(time_steps, batch, hidden, dtype):
    weight = torch.randn(hidden, hidden, device=DEVICE, dtype=torch.float32) * (0.9 / hidden**0.5)
    x = torch.randn(time_steps, batch, hidden, device=DEVICE, dtype=torch.float32)
    return x.to(dtype), weight.to(dtype)


def plain_forward(x, weight, dtype):
    x, weight = x.to(dtype), weight.to(dtype)
    h, outputs = torch.zeros_like(x[0]), []
    for term in x:
        h = torch.addmm(term, h, weight.t()).clamp(0, 20)
        outputs.append(h)
    return torch.stack(outputs)


def plain_backward(grad, output, weight, dtype):
    grad, output, weight = grad.to(dtype), output.to(dtype), weight.to(dtype)
    d, deltas = torch.zeros_like(grad[0]), []
    for t in reversed(range(len(grad))):
        d = torch.addmm(grad[t], d, weight) * ((output[t] > 0) & (output[t] < 20))
        deltas.append(d)
    return torch.stack(deltas[::-1])


def error(value, truth):
    return ((value.double() - truth).norm() / truth.norm()).item()


def checked(run, x, weight, hidden, dtype):
    """The kernel's error and plain PyTorch's, by the text above; raises where the first is too large."""
    value = run(x, weight, hidden)
    plain = plain_forward if hidden is None else lambda x, w, d: plain_backward(x, hidden, w, d)
    truth = plain(x, weight, torch.float64)
    persistent.check()
    errors = error(value, truth), error(plain(x, weight, dtype), truth)
    if not errors[0] <= 2 * errors[1]:
        raise AssertionError(f"error {errors[0]:.2e} exceeds twice plain PyTorch's {errors[1]:.2e}")
    return errors


def microseconds(run, steps, repeats=25, warm=0.05):
    started = time.perf_counter()
    while time.perf_counter() - started < warm:  # seconds: the clock has to come up again after each check
        run()
        torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(QUEUED):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (QUEUED * steps))
    return statistics.median(times)


def compile_one(label, registers, defines):
    used = compiler.compile_cubin("recurrence.cu", defines, "sm_90a").resources["recurrence"]
    spilled = used.spill_stores + used.spill_loads + used.stack
    return f"{used.registers:3d} of {registers:3d} registers {'SPILLS' if spilled else ''} {label}"


def compile_all():
    """With BUILD=1: everything the stages asked for, on all cores."""
    first = int(os.environ.get("BUILD_FIRST", len(WANTED)))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for line in pool.map(compile_one, *zip(*WANTED[:first], strict=True)):
            print(line, flush=True)


def variant(chosen, steps=T, check=True, activation="clipped_relu", extra=()):
    """Check and time one variant; prints and returns its time."""
    half = "bwd" if chosen.backward else "fwd"
    label = (
        f"{chosen.hidden_size:5d} x {chosen.batch_size:<3d} {chosen.dtype} {half} rows {chosen.rows} "
        f"columns {chosen.columns} warps {chosen.product_warps}+{chosen.cell_warps} kept {chosen.register_tiles}/"
        f"{chosen.warp_tiles} chunk {chosen.chunk_tiles} blocks {chosen.groups}x{chosen.group_blocks} "
        f"rounds {chosen.rounds} copies {2 if chosen.sides else 1}"
    )
    label += "".join(f" {name}={value}" for name, value in extra)
    if BUILD:
        WANTED.append((label, chosen.registers, {**chosen.defines(activation), **dict(extra)}))
        return 0.0
    dtype = getattr(torch, chosen.dtype)

    def run(x, weight, hidden):
        return persistent.launch(chosen, activation, False, x, weight, None, None, hidden=hidden, extra=extra)[0]

    errors = ""
    if check:
        x, weight = random_arguments(24, chosen.batch_size, chosen.hidden_size, dtype)
        hidden = plain_forward(x, weight, dtype) if chosen.backward else None
        errors = "error {:.1e} plain {:.1e}".format(*checked(run, x, weight, hidden, dtype))
    x, weight = random_arguments(steps, chosen.batch_size, chosen.hidden_size, dtype)
    hidden = torch.rand_like(x) if chosen.backward else None
    us = microseconds(lambda: run(x, weight, hidden), steps)
    persistent.check()
    expected = chosen.rounds * chosen.cycles / 1700
    print(f"{us:7.3f} us/step (planned {expected:6.3f}) {label} {errors}", flush=True)
    ROWS.append({"us_per_step": us, "planned": expected, "errors": errors, **asdict(chosen), "extra": dict(extra)})
    return us


def plan(hidden, batch, dtype="bfloat16", backward=False):
    return tiles.choose_tiles(hidden, batch, dtype, backward, gpu())


def gpu():
    """This machine's GPU; without one an H200, for which the kernels are compiled then."""
    if torch.cuda.is_available():
        return persistent._gpu(0)
    return tiles.Gpu(sides=tiles.SIDES["NVIDIA H200"])
