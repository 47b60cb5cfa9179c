"""Ways of doing one thing beside each other, in turns: the stages ``rivals`` and ``sides`` of ``kernel_bench.py``."""

import json
import os
import statistics
from dataclasses import asdict
from pathlib import Path

import torch

from prnn_ext import compiler, persistent, tiles
from tests.gpu.timed_launch import (
    BUILD,
    ROWS,
    T,
    checked,
    gpu,
    microseconds,
    plain_forward,
    plan,
    random_arguments,
    variant,
)

RIVALS = (*((hidden, 4, "bfloat16") for hidden in (256, 512, 768, 1152, 1536, 1760, 2304, 2560, 4096)),
          *((512, 64, "bfloat16"), (1152, 16, "bfloat16"), (1152, 64, "bfloat16")),
          (1152, 4, "float32"), (2560, 4, "float32"))  # fmt: skip
"""Layers at which the planner's next best splits are timed too."""
ONE_TILE = ((256, 4), (512, 4), (768, 4), (1152, 4), (1152, 8))
"""Hidden size x mini-batch of layers whose blocks have one tile."""
WAITS = (350, 450, 500, 550)


def rivals():
    """Is the planner's split the fastest?"""
    for backward in (False, True):
        for size in RIVALS:
            compare([(split, {}) for split in best_splits(*size, backward)], rounds=5)


def best_splits(*layer, count=4):
    """The planner's choice for a layer's half and its next best, each another division of the work."""
    found = sorted(tiles.splits(*layer, gpu()), key=lambda s: (s.rounds * s.cycles, s.blocks))
    apart = {}
    for split in found:
        apart.setdefault((split.rows, split.columns, split.product_warps, split.chunk_tiles), split)
    return [split.with_sides(gpu().sides) for split in list(apart.values())[:count]]


def sides():
    """One copy of what is published, two, and other first waits (exchange.cuh), at the sizes that have one tile.

    PRNN_PROBE names what ``l2_probe.py`` found on this GPU; without it the sides of an H200 are taken: if they are
    wrong here, the copies cost time.
    """
    known = tiles.SIDES["NVIDIA H200"]
    probe = os.environ.get("PRNN_PROBE")
    if probe and not BUILD:
        found = json.loads(Path(probe).read_text())["atomics"]
        bits = found["deciding_address_bits"]
        largest = plan(1152, 4, backward=True).with_sides(None).workspace_bytes
        apart = [bit for bit in bits if 1 << bit >= largest]
        if found["lines_that_they_explain"] < 0.95 or not apart:
            print(f"no bit of an address sets copies on two sides: {found}", flush=True)
            return
        known = tiles.Sides(apart[0], sum(1 << bit for bit in bits if bit < apart[0]))
        if known != tiles.SIDES["NVIDIA H200"]:
            print(f"not the sides of an H200, and not compiled beforehand: {known}", flush=True)
    for backward in (False, True):
        for hidden, batch in ONE_TILE:
            one = plan(hidden, batch, backward=backward).with_sides(None)
            two = one.with_sides(known)
            waits = [(split, {"PRNN_FIRST_WAIT": cycles}) for split in (one, two) for cycles in WAITS]
            compare([(one, {}), (two, {}), *waits], rounds=5)


def spilled_bytes(split, extra):
    """What ptxas spilled; such code is not timed, since nobody would use it."""
    defines = {**split.defines("clipped_relu"), **extra}
    used = compiler.compile_cubin("recurrence.cu", defines, "sm_90a").resources["recurrence"]
    return used.spill_stores + used.spill_loads + used.stack


def compare(candidates, rounds=7):
    """Checks each (split, macros), then times them in turn, so that a drifting clock meets all of them; prints
    medians, spread and the ratio to the first. All are of one layer's half; those that spill are named and left out."""
    if BUILD:
        for split, extra in candidates:
            variant(split, extra=tuple(extra.items()))
        return
    layer = candidates[0][0]
    spilling = [candidate for candidate in candidates if spilled_bytes(*candidate)]
    candidates = [candidate for candidate in candidates if candidate not in spilling]
    dtype = getattr(torch, layer.dtype)
    small, big = (random_arguments(steps, layer.batch_size, layer.hidden_size, dtype) for steps in (24, T))
    hidden = (plain_forward(*small, dtype), torch.rand_like(big[0])) if layer.backward else (None, None)

    def runner(split, extra):
        def run(x, weight, hidden):
            arguments = (split, "clipped_relu", False, x, weight, None, None)
            return persistent.launch(*arguments, hidden=hidden, extra=tuple(extra.items()))[0]

        checked(run, *small, hidden[0], dtype)
        return lambda: run(*big, hidden[1])

    runs = [runner(*candidate) for candidate in candidates]
    times = [[] for _ in runs]
    for _ in range(rounds):
        for run, found in zip(runs, times, strict=True):
            # Only the first of all has been idle: the others' launches kept the clock up.
            found.append(microseconds(run, T, repeats=3, warm=0.005 if any(times[1:]) else 0.05))
    for split, extra in spilling:
        print(f"left out, it spills: {split} {extra}", flush=True)
    print(f"{layer.hidden_size} x {layer.batch_size} {layer.dtype} {'backward' if layer.backward else 'forward'}")
    for (split, extra), found in zip(candidates, times, strict=True):
        us, first = statistics.median(found), statistics.median(times[0])
        name = " ".join(f"{key.removeprefix('PRNN_')}={value}" for key, value in extra.items())
        print(
            f"{us:7.3f} us/step ({min(found):.3f} to {max(found):.3f}) {us / first:6.3f} x  rows {split.rows} columns "
            f"{split.columns} warps {split.product_warps} kept {split.register_tiles}/{split.warp_tiles} "
            f"chunk {split.chunk_tiles} copies {2 if split.sides else 1} {name}",
            flush=True,
        )
        ROWS.append({"us_per_step": us, "low": min(found), "high": max(found), **asdict(split), "extra": extra})
    persistent.check()
