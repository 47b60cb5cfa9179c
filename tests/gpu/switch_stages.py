"""The switches of prnn_ext/cuda/switches.cuh beside what is used: stages of ``kernel_bench.py``."""

import json
import os
import statistics
from dataclasses import asdict
from pathlib import Path

import torch

from prnn_ext import build, compiler, persistent, tiles
from tests.gpu.timed_launch import (
    BUILD,
    DEVICE,
    ROWS,
    T,
    checked,
    microseconds,
    plain_forward,
    plan,
    random_arguments,
    variant,
)

ROTATED, SPARING, EAGER, CHAINS = {"PRNN_ROTATED": 1}, {"PRNN_SPARING": 1}, {"PRNN_EAGER": 1}, {"PRNN_CHAINS": 3}
FASTER = {**EAGER, **ROTATED, **SPARING, **CHAINS}
"""Of prnn_ext/cuda/switches.cuh, those that promise something at every size."""
ALONE = ({}, ROTATED, SPARING, EAGER, CHAINS)
TOGETHER = (
    FASTER,
    *({name: value for name, value in FASTER.items() if name != left_out} for left_out in FASTER),
    {**FASTER, "PRNN_CHAINS": 6},
    *({**FASTER, "PRNN_FIRST_WAIT": cycles} for cycles in (250, 300, 350, 450, 500)),
)

# Of `second`: sets of switches that may become the only way, and layers at which they must not lose.
SMALL = ((1152, 4, "bfloat16"), (256, 4, "bfloat16"))
OTHERS = (
    *((hidden, 4, "bfloat16") for hidden in (2304, 2560, 4096)),
    *((1152, batch, "bfloat16") for batch in (16, 64)),
    (512, 64, "bfloat16"),
    (1152, 4, "float32"),
    (2560, 4, "float32"),
)
PAIRED = ({**ROTATED, **SPARING}, {**ROTATED, **SPARING, **CHAINS})
TIMELY = ({**ROTATED, **CHAINS}, PAIRED[1], FASTER)
RIVALS = (*((hidden, 4, "bfloat16") for hidden in (512, 2304, 2560, 4096)), (512, 64, "bfloat16"),
          (1152, 16, "bfloat16"), (1152, 64, "bfloat16"), (1152, 4, "float32"), (2560, 4, "float32"))  # fmt: skip
"""Layers at which `second` times the planner's next best splits too."""

H200_SIDES = {"deciding_address_bits": [12, 13, 15, 17], "lines_that_they_explain": 1.0}
"""What ``l2_probe.py`` found on one H200 (docs/KERNEL.md)."""


def variants():
    """The switches beside each other and beside what is used, at the size of the paper and at others."""
    for backward in (False, True):
        compare([(plan(1152, 4, backward=backward), extra) for extra in (*ALONE, *TOGETHER)])
        nine = tiles.make_tiles(1152, 4, "bfloat16", backward, 16, 8, 9)
        compare(
            [(nine, extra) for extra in ({}, FASTER, {**FASTER, "PRNN_CHAINS": 4}, {**FASTER, "PRNN_FIRST_WAIT": 300})]
        )
        for size in ((1152, 64, "bfloat16"), (256, 4, "bfloat16"), (2560, 4, "bfloat16"), (1152, 4, "float32")):
            chosen = plan(*size, backward)
            compare([(chosen, extra) for extra in ({}, FASTER, {**FASTER, "PRNN_FIRST_WAIT": 300})])


def second():
    """Which of the switches' sets is faster where, with which first wait, and is the planner's split the best: about a
    minute of a GPU."""
    for backward in (False, True):
        for size in SMALL:
            late = [{**extra, "PRNN_FIRST_WAIT": cycles} for extra in TIMELY for cycles in (450, 500, 550)]
            switches = ({}, ROTATED, {**ROTATED, **CHAINS}, *PAIRED, FASTER, *late)
            compare([(plan(*size, backward), extra) for extra in switches], rounds=5)
        for size in OTHERS:
            compare([(plan(*size, backward), extra) for extra in (*ALONE, *PAIRED)], rounds=5)
        for size in RIVALS:
            compare([(split, {}) for split in best_splits(*size, backward)], rounds=5)
    sides((PAIRED[1], FASTER), (400, 500), rounds=5)


def best_splits(*layer, count=4):
    """The planner's choice for a layer's half and its next best, each another division of the work."""
    found = sorted(tiles.splits(*layer, build.GPUS["sm_90a"]), key=lambda s: (s.rounds * s.cycles, s.blocks))
    apart = {}
    for split in found:
        apart.setdefault((split.rows, split.columns, split.product_warps, split.chunk_tiles), split)
    return list(apart.values())[:count]


def sides(sets=(FASTER,), waits=(300, 400), rounds=7):
    """Two copies of what is published, one at home on each side of L2, with ``sets`` of other switches.

    PRNN_PROBE names what ``l2_probe.py`` found on this GPU; without it the bits of one H200 are taken: if they are
    wrong here, the copies cost time.
    """
    probe = os.environ.get("PRNN_PROBE")
    found = json.loads(Path(probe).read_text())["atomics"] if probe and not BUILD else H200_SIDES
    bits = found["deciding_address_bits"]
    for backward in (False, True):
        chosen = plan(1152, 4, backward=backward)
        apart = [bit for bit in bits if 1 << bit >= chosen.workspace_bytes]
        if found["lines_that_they_explain"] < 0.95 or not apart:
            print(f"no bit of an address sets copies on two sides: {found}", flush=True)
            continue
        mask = sum(1 << bit for bit in bits if bit < apart[0])
        copies = {"PRNN_SIDES": apart[0], "PRNN_SIDE_MASK": mask, "PRNN_WORKSPACE_BYTES": 4 << apart[0]}
        timed = [{**extra, **copies, "PRNN_FIRST_WAIT": cycles} for extra in sets for cycles in waits]
        compare([(chosen, extra) for extra in ({}, copies, *sets, *timed)], rounds)


def spilled_bytes(split, extra):
    """What ptxas spilled; such code is not timed, since nobody would use it."""
    defines = {**split.defines("clipped_relu"), **extra}
    used = compiler.compile_cubin("recurrence.cu", defines, "sm_90a").resources["recurrence"]
    return used.spill_stores + used.spill_loads + used.stack


def compare(candidates, rounds=7):
    """Checks each (split, switches), then times them in turn, so that a drifting clock meets all of them; prints
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
    for _, extra in spilling:
        print(f"left out, it spills: {extra}", flush=True)
    print(f"{layer.hidden_size} x {layer.batch_size} {layer.dtype} {'backward' if layer.backward else 'forward'}")
    for (split, extra), found in zip(candidates, times, strict=True):
        us, first = statistics.median(found), statistics.median(times[0])
        name = " ".join(f"{key.removeprefix('PRNN_')}={value}" for key, value in extra.items()) or "as it is"
        print(
            f"{us:7.3f} us/step ({min(found):.3f} to {max(found):.3f}) {us / first:6.3f} x  rows {split.rows} columns "
            f"{split.columns} warps {split.product_warps} kept {split.register_tiles}/{split.warp_tiles} "
            f"chunk {split.chunk_tiles} {name}",
            flush=True,
        )
        ROWS.append({"us_per_step": us, "low": min(found), "high": max(found), **asdict(split), "extra": extra})
    persistent.check()


def lengths():
    """What reading the lengths costs a launch: none, one after the other, many lanes at once."""
    for batch in (4, 64):
        chosen = plan(1152, batch)
        if BUILD:
            variant(chosen)
            variant(chosen, extra=(("PRNN_LENGTHS", 1),))
            continue
        x, weight = random_arguments(350, batch, 1152, torch.bfloat16)
        full = torch.full((batch,), 350, dtype=torch.int32, device=DEVICE)
        for name, given, extra in (
            ("none", None, ()),
            ("in turn", full, ()),
            ("at once", full, (("PRNN_LENGTHS", 1),)),
        ):
            arguments = (chosen, "clipped_relu", False, x, weight, None, given)
            us = microseconds(lambda a=arguments, e=extra: persistent.launch(*a, extra=e), 1)
            print(f"{us:8.2f} us a launch of 350 steps, 1152 x {batch}, lengths {name}", flush=True)
            ROWS.append({"us_per_launch": us, "batch_size": batch, "lengths": name})
            persistent.check()
