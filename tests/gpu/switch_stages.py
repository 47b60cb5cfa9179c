"""The switches of prnn_ext/cuda/switches.cuh beside what is used: stages of ``kernel_bench.py``."""

import json
import os
import statistics
from dataclasses import asdict
from pathlib import Path

import torch

from prnn_ext import persistent, tiles
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

# Of prnn_ext/cuda/switches.cuh, those that promise something at every size; each alone, and all but each.
FASTER = {"PRNN_EAGER": 1, "PRNN_ROTATED": 1, "PRNN_SPARING": 1, "PRNN_CHAINS": 3}
ALONE = ({}, *({name: value} for name, value in FASTER.items()), {"PRNN_DENSE": 4}, {"PRNN_LOAD": 1}, {"PRNN_LOAD": 2})
TOGETHER = (
    FASTER,
    *({name: value for name, value in FASTER.items() if name != left_out} for left_out in FASTER),
    {**FASTER, "PRNN_CHAINS": 6},
    {**FASTER, "PRNN_DENSE": 4},
    *({**FASTER, "PRNN_FIRST_WAIT": cycles} for cycles in (250, 300, 350, 450, 500)),
)

# Splits with more weights in registers than the planner dares, found by compiling them (16 bits: with PRNN_BASED) for
# sm_90a without a spilled byte: hidden size, mini-batch, dtype, backward; then rows, columns, product warps, chunk
# tiles, register tiles, groups.
KEPT = {
    (1152, 64, "bfloat16", False): (
        (48, 16, 8, 10, 4, 4),
        (48, 16, 8, 10, 7, 4),
        (96, 8, 8, 10, 4, 8),
        (96, 8, 9, 8, 4, 8),
    ),
    (1152, 64, "bfloat16", True): ((96, 8, 9, 4, 4, 8), (96, 8, 8, 3, 4, 8), (96, 8, 9, 8, 3, 8)),
    (2304, 4, "bfloat16", False): ((32, 8, 12, 6, 7, 1), (32, 8, 12, 12, 8, 1), (32, 8, 8, 18, 11, 1)),
    (2304, 4, "bfloat16", True): ((32, 8, 9, 8, 9, 1), (32, 8, 12, 6, 6, 1), (32, 8, 8, 9, 8, 1)),
    (2560, 4, "bfloat16", False): ((32, 8, 10, 16, 10, 1), (32, 8, 10, 16, 13, 1), (32, 8, 8, 20, 11, 1)),
    (2560, 4, "bfloat16", True): ((32, 8, 10, 8, 9, 1), (32, 8, 8, 10, 8, 1)),
    (4096, 4, "bfloat16", False): ((32, 8, 11, 6, 13, 1), (32, 8, 11, 12, 12, 1)),
    (4096, 4, "bfloat16", True): ((32, 8, 11, 6, 8, 1), (32, 8, 11, 6, 11, 1)),
    (1152, 4, "float32", False): ((16, 4, 12, 6, 6, 1), (16, 4, 9, 8, 8, 1)),
    (1152, 4, "float32", True): ((16, 4, 12, 2, 6, 1), (16, 4, 9, 4, 8, 1)),
    (2560, 4, "float32", False): ((24, 4, 14, 4, 4, 1), (24, 4, 8, 4, 6, 1)),
    (2560, 4, "float32", True): ((24, 4, 10, 4, 4, 1), (24, 4, 10, 2, 6, 1)),
}


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


def kept():
    """More weights in registers, beside the planner's choice: alone, and with the other switches."""
    for layer in KEPT:
        hidden = layer[0]
        planned, made = plan(*layer), splits_kept(*layer)
        based = {"PRNN_BASED": 1}
        # At 4096 the other switches together spill.
        together = [(made[0], {**FASTER, **based})] if hidden < 4096 else []
        compare([(planned, {}), (planned, based), *((split, based) for split in made), *together])


def splits_kept(*layer):
    """The splits of `KEPT` for a layer's half."""
    return [
        tiles.Tiles(*layer, rows, columns, warps, register_tiles, chunk, groups)
        for rows, columns, warps, chunk, register_tiles, groups in KEPT[layer]
    ]


def sides():
    """Two copies of what is published, one at home on each side of L2, if ``l2_probe.py`` found sides.

    PRNN_PROBE names its result.
    """
    found = {"deciding_address_bits": [8, 12, 16, 17], "lines_that_they_explain": 1.0}
    if not BUILD:
        found = json.loads(Path(os.environ["PRNN_PROBE"]).read_text())["atomics"]
    bits = found["deciding_address_bits"]
    for backward in (False, True):
        chosen = plan(1152, 4, backward=backward)
        apart = [bit for bit in bits if 1 << bit >= chosen.workspace_bytes]
        if found["lines_that_they_explain"] < 0.95 or not apart:
            print(f"no bit of an address sets copies on two sides: {found}", flush=True)
            continue
        mask = sum(1 << bit for bit in bits if bit < apart[0])
        copies = {"PRNN_SIDES": apart[0], "PRNN_SIDE_MASK": mask, "PRNN_WORKSPACE_BYTES": 4 << apart[0]}
        early = {**FASTER, **copies, "PRNN_FIRST_WAIT": 300}
        compare([(chosen, extra) for extra in ({}, copies, FASTER, {**FASTER, **copies}, early)])


def compare(candidates, rounds=7):
    """Checks each (split, switches), then times them in turn, so that a drifting clock meets all of them; prints
    medians, spread and the ratio to the first. All are of one layer's half."""
    if BUILD:
        for split, extra in candidates:
            variant(split, extra=tuple(extra.items()))
        return
    layer = candidates[0][0]
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
            found.append(microseconds(run, T, repeats=5))
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
