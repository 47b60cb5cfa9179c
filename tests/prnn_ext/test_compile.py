"""Variants of the kernel that cover every branch of its source compile for each architecture, and spill nothing.

All sizes are compiled by ``tests/prnn_ext/compile_all.py``, whose results are in docs/KERNEL.md.
"""

import pytest

from prnn_ext import build, tiles
from prnn_ext.compiler import compile_cubin

VARIANTS = {
    "one tile": (16, 1, "bfloat16", False, "relu"),
    "scalar loads, odd tiles": (257, 4, "float16", False, "tanh"),
    "the paper's, forward": (1152, 4, "bfloat16", False, "clipped_relu"),
    "the paper's, backward": (1152, 4, "bfloat16", True, "clipped_relu"),
    "many columns, forward": (1152, 64, "bfloat16", False, "relu"),
    "many columns, backward": (1152, 64, "float16", True, "tanh"),
    "several column tiles, forward": (2048, 32, "bfloat16", False, "clipped_relu"),
    "weights in shared memory": (2304, 4, "bfloat16", False, "tanh"),
    "weights in shared memory, backward": (2304, 4, "bfloat16", True, "tanh"),
    "the largest, several chunks": (4096, 4, "bfloat16", True, "relu"),
    "float32 forward": (1152, 4, "float32", False, "clipped_relu"),
    "float32 backward": (1152, 4, "float32", True, "tanh"),
    "float32 scalar loads": (101, 9, "float32", True, "relu"),
    "float32 of 24 rows a block": (2560, 4, "float32", False, "tanh"),
}

SIDES = tiles.Sides(apart=18, mask=1 << 7 | 1 << 12)  # of no GPU


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
    for split in {chosen, chosen.with_sides(SIDES)}:
        for extra in ({}, {"PRNN_TRACE": 8, "PRNN_TRACE_FROM": split.workspace_bytes}):
            defines = {**split.defines(activation), **extra}
            used = compile_cubin("recurrence.cu", defines, arch).resources["recurrence"]
            assert extra or (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)
            assert used.registers <= chosen.registers


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
        lambda c: c.with_sides(SIDES).sides and not c.backward,
        lambda c: c.with_sides(SIDES).sides and c.backward,
        lambda c: c.dtype != "float32" and not c.one_tile and not c.backward and c.column_tiles == 1,
        lambda c: c.dtype != "float32" and not c.one_tile and not c.backward and c.column_tiles > 1,
        lambda c: c.dtype != "float32" and c.backward and c.row_tiles in (2, 3) and c.warp_tiles == c.chunk_tiles,
        lambda c: c.dtype != "float32" and c.backward and c.row_tiles > 3,
        lambda c: c.dtype != "float32" and c.backward and c.warp_tiles > c.chunk_tiles,
    ):
        assert any(branch(chosen) for chosen, _ in met)
