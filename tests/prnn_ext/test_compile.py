"""Variants of the kernel that cover every branch of its source compile for each architecture, and spill nothing.

All sizes are compiled by ``tests/prnn_ext/compile_all.py``, whose results are in docs/KERNEL.md.
"""

from dataclasses import replace
from itertools import product

import pytest

from prnn_ext import build, tiles
from prnn_ext.compiler import compile_cubin
from tests.gpu.switch_stages import FASTER

VARIANTS = {
    "one tile": (16, 1, "bfloat16", False, "relu"),
    "scalar loads, odd tiles": (257, 4, "float16", False, "tanh"),
    "the paper's, forward": (1152, 4, "bfloat16", False, "clipped_relu"),
    "the paper's, backward": (1152, 4, "bfloat16", True, "clipped_relu"),
    "many columns, forward": (1152, 64, "bfloat16", False, "relu"),
    "many columns, backward": (1152, 64, "float16", True, "tanh"),
    "weights in shared memory": (2304, 4, "bfloat16", False, "tanh"),
    "the largest, several chunks": (4096, 4, "bfloat16", True, "relu"),
    "float32 forward": (1152, 4, "float32", False, "clipped_relu"),
    "float32 backward": (1152, 4, "float32", True, "tanh"),
    "float32 scalar loads": (101, 9, "float32", True, "relu"),
    "float32 of 24 rows a block": (2560, 4, "float32", False, "tanh"),
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_compiles_without_spills(name: str, arch: str) -> None:
    *size, activation = VARIANTS[name]
    try:
        chosen = tiles.choose_tiles(*size, build.GPUS[arch])
    except ValueError:
        assert arch == "sm_80", "only the smaller GPU may lack room"
        return
    used = compile_cubin("recurrence.cu", chosen.defines(activation), arch).resources["recurrence"]
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
    assert used.registers <= chosen.registers


SWITCHED = ("the paper's, forward", "the paper's, backward", "many columns, forward", "float32 forward")
# Blocks of 48 rows x 16 columns, the planner's there, have no room for PRNN_ROTATED's addresses, however few weights
# they keep: it cannot become the only way as it is.
KNOWN_TO_SPILL = ("many columns, forward", "sm_100a")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param(*case, marks=pytest.mark.xfail(strict=True)) if case == KNOWN_TO_SPILL else case
        for case in product(SWITCHED, ("sm_80", "sm_90a", "sm_100a"))
    ],
)
def test_the_switches_that_wait_for_a_gpu_compile_without_spills(name: str, arch: str) -> None:
    *size, activation = VARIANTS[name]
    chosen = tiles.choose_tiles(*size, build.GPUS[arch])
    if chosen.output_tiles > 2 or chosen.dtype == "float32":
        # They need registers that the planner gives to weights; what becomes the only way, it must count.
        chosen = replace(chosen, register_tiles=max(0, chosen.register_tiles - 2))
    switches = {**FASTER, "PRNN_LENGTHS": 1}
    sides = {"PRNN_SIDES": 18, "PRNN_SIDE_MASK": 0x1280} if chosen.warp_tiles <= 8 else {}
    for extra in (switches, {"PRNN_TRACE": 8}, {**sides, **FASTER}):
        used = compile_cubin("recurrence.cu", {**chosen.defines(activation), **extra}, arch).resources["recurrence"]
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


def test_ptx_of_compute_80_has_no_later_instruction() -> None:
    """NVRTC refuses an instruction that the virtual architecture lacks."""
    chosen = tiles.choose_tiles(256, 4, "bfloat16", False, build.GPUS["sm_80"])
    image = compile_cubin("recurrence.cu", chosen.defines("relu"), "compute_80").image
    assert b".target sm_80" in image
    assert b"mma.sync.aligned.m16n8k16" in image


def test_the_variants_reach_every_branch() -> None:
    """What distinguishes the sources' branches, each met by some variant."""
    met = [(tiles.choose_tiles(*v[:4], build.GPUS["sm_90a"]), v[4]) for v in VARIANTS.values()]
    assert {chosen.dtype for chosen, _ in met} == set(tiles.DTYPES)
    assert {activation for _, activation in met} == set(tiles.ACTIVATIONS)
    for branch in (
        lambda c: c.column_tiles > 1 or c.groups > 1,
        lambda c: c.register_tiles < c.warp_tiles,
        lambda c: c.register_tiles == c.warp_tiles,
        lambda c: c.warp_tiles > c.chunk_tiles,
        lambda c: c.cell_warps > 1,
        lambda c: c.output_tiles > c.cell_warps,
        lambda c: c.inner_tiles % 2 == 1,
        lambda c: c.hidden_size % 4 > 0,
        lambda c: c.rows % 16 > 0,
        lambda c: c.product_warps == 1,
    ):
        assert any(branch(chosen) for chosen, _ in met)
