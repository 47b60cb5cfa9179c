"""The planner: every size has a split, every split fits, covers U once, and lets no warp wait for nothing."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prnn_ext import build, tiles

H200 = build.GPUS["sm_90a"]
A100 = build.GPUS["sm_80"]


def assert_sound(chosen: tiles.Tiles, gpu: tiles.Gpu) -> None:
    """The limits of the hardware, and what prnn_ext/cuda takes for granted (shape.cuh's static assertions)."""
    assert chosen.threads <= 1024
    assert max(chosen.product_registers, chosen.cell_registers) <= chosen.registers
    assert chosen.threads * chosen.registers <= 65536 + 128 * 8 * 32
    assert chosen.shared_bytes <= gpu.shared_bytes
    assert 0 < chosen.blocks <= gpu.multiprocessors
    # Rows: all of U, each in one block, none left to nobody.
    assert chosen.group_blocks * chosen.rows >= 16 * chosen.inner_tiles > (chosen.group_blocks - 1) * chosen.rows
    assert chosen.rows % (8 if chosen.dtype == "float32" else 16) == 0
    # The inner dimension: covered, and the last warp still has a tile of its own.
    assert chosen.product_warps * chosen.warp_tiles >= chosen.inner_tiles
    assert (chosen.product_warps - 1) * chosen.warp_tiles < chosen.inner_tiles
    assert chosen.warp_tiles % chosen.chunk_tiles == 0
    assert 0 <= chosen.register_tiles <= chosen.warp_tiles
    if chosen.dtype == "float32":
        assert chosen.chunk_tiles % 2 == 0 == chosen.register_tiles % 2
    elif not chosen.backward:
        assert chosen.chunk_tiles % 2 == 0
    assert chosen.output_tiles % chosen.cell_warps == 0
    # The mini-batch: all of it, in no more groups than are useful.
    assert chosen.rounds * chosen.groups * chosen.columns >= chosen.batch_size
    assert (chosen.groups - 1) * chosen.columns < chosen.batch_size


@pytest.mark.parametrize("backward", [False, True])
def test_every_hidden_size_in_bfloat16(backward: bool) -> None:
    for hidden_size in itertools.chain(range(1, 100, 3), range(100, 4097, 97), (2048, 2560, 4096)):
        assert_sound(tiles.choose_tiles(hidden_size, 4, "bfloat16", backward, H200), H200)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4096),
    st.integers(1, 256),
    st.sampled_from(tiles.DTYPES),
    st.booleans(),
    st.sampled_from(sorted(build.GPUS)),
)
def test_any_request_fits_or_says_why(hidden_size: int, batch: int, dtype: str, backward: bool, arch: str) -> None:
    gpu = build.GPUS[arch]
    found = tiles.splits(hidden_size, batch, dtype, backward, gpu)
    if found:
        assert tiles.choose_tiles(hidden_size, batch, dtype, backward, gpu) in found
        for split in found:
            assert_sound(split, gpu)
    else:
        assert gpu != H200 or hidden_size > (2560 if dtype == "float32" else 4096)
        with pytest.raises(ValueError, match="does not fit"):
            tiles.choose_tiles(hidden_size, batch, dtype, backward, gpu)


@pytest.mark.parametrize(("dtype", "largest"), [("bfloat16", 4096), ("float16", 4096), ("float32", 2560)])
@pytest.mark.parametrize("backward", [False, True])
def test_the_largest_promised_size_fits_an_h200(dtype: str, largest: int, backward: bool) -> None:
    assert_sound(tiles.choose_tiles(largest, 4, dtype, backward, H200), H200)


def test_a_size_that_fits_nowhere_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"hidden_size 20000 in bfloat16 does not fit .* use a smaller hidden_size"):
        tiles.choose_tiles(20000, 4, "bfloat16", False, H200)
    with pytest.raises(ValueError, match="both must be 1 or more"):
        tiles.choose_tiles(0, 4, "bfloat16", False, H200)


@pytest.mark.parametrize("hidden_size", [256, 1152, 1760, 2560])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_multiprocessors_stay_free_for_nccl(hidden_size: int, batch_size: int) -> None:
    for backward in (False, True):
        chosen = tiles.choose_tiles(hidden_size, batch_size, "bfloat16", backward, H200)
        assert chosen.blocks <= H200.multiprocessors - 16


def test_small_mini_batches_share_one_kernel() -> None:
    """Mini-batch is a run-time argument within a tile: 1 to 8 compile once."""
    kernels = {
        tuple(tiles.choose_tiles(1152, batch, "bfloat16", False, H200).defines("relu").items()) for batch in range(1, 9)
    }
    assert len(kernels) == 1


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("sides", [*tiles.SIDES.values(), tiles.Sides(apart=13, mask=0)], ids=str)
def test_two_copies_where_the_sides_are_known_and_have_room(dtype: str, backward: bool, sides: tiles.Sides) -> None:
    gpu = replace(H200, sides=sides)
    for hidden_size, batch_size in itertools.product((16, 100, 257, 512, 1152, 1850, 2560), (1, 8, 9, 64)):
        one = tiles.choose_tiles(hidden_size, batch_size, dtype, backward, H200)
        two = tiles.choose_tiles(hidden_size, batch_size, dtype, backward, gpu)
        assert replace(two, sides=None) == one  # the sides decide nothing else
        wanted = one.one_tile and one.groups == 1 and one.workspace_bytes <= 1 << sides.apart
        assert (two.sides == sides) == wanted
        assert ("PRNN_SIDES" in two.defines("relu")) == wanted
        if wanted:
            # cuda/exchange.cuh: the flag, then both copies from a multiple of twice their distance on, wherever torch's
            # allocator put the workspace.
            for start in range(0, 4 << sides.apart, 4096 + 16):
                step = 2 << sides.apart
                flag = start + -(start + 256) % step
                assert flag + one.workspace_bytes <= flag + (1 << sides.apart)
                assert flag + (1 << sides.apart) + one.workspace_bytes <= start + two.workspace_bytes


def test_only_measured_gpus_have_sides() -> None:
    """The paper's layer, at every small mini-batch, is what they are for."""
    assert all(gpu.sides is None for gpu in build.GPUS.values())
    gpu = replace(H200, sides=tiles.SIDES["NVIDIA H200"])
    for batch_size, backward in itertools.product(range(1, 9), (False, True)):
        assert tiles.choose_tiles(1152, batch_size, "bfloat16", backward, gpu).sides


def test_the_estimate_has_no_cliff() -> None:
    """Every 64th size within 1.3x of its neighbours, as docs/KERNEL.md promises of the measured times."""
    for backward in (False, True):
        times = [
            tiles.choose_tiles(hidden_size, 4, "bfloat16", backward, H200).cycles
            for hidden_size in range(256, 2561, 64)
        ]
        assert all(max(a, b) <= 1.3 * min(a, b) for a, b in itertools.pairwise(times))


def test_an_a100_gets_the_paper_size() -> None:
    assert tiles.choose_tiles(1152, 4, "bfloat16", False, A100).blocks <= 108 - 16


def measured() -> dict[tuple, list[tuple[tiles.Tiles, float]]]:
    """Splits and their us per time step by layer's half, of one H200: docs/KERNEL.md says when and how."""
    found = defaultdict(list)
    for row in json.loads(Path(__file__).with_name("measured_splits.json").read_text()):
        us = row.pop("us_per_step")
        split = tiles.Tiles(**row)
        found[split.hidden_size, split.batch_size, split.dtype, split.backward].append((split, us))
    return found


@pytest.mark.parametrize("layer", measured(), ids=str)
def test_the_estimate_tells_measured_splits_apart(layer: tuple) -> None:
    """It is near the time of each, its favourite is near the fastest, and the planner's choice is no worse."""
    splits = measured()[layer]
    for split, us in splits:
        assert split.rounds * split.cycles / 1700 == pytest.approx(us, rel=0.15)
    favourite, us = min(splits, key=lambda pair: pair[0].rounds * pair[0].cycles)
    assert us <= 1.05 * min(us for _, us in splits)
    chosen = tiles.choose_tiles(*layer, H200)
    assert chosen.rounds * chosen.cycles <= 1.05 * favourite.rounds * favourite.cycles


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("dtype", "free", "all_taken"), [("bfloat16", 3704, 4216), ("float32", 2784, 3136)])
def test_what_fits_is_what_the_documentation_says(dtype: str, free: int, all_taken: int, backward: bool) -> None:
    """docs/KERNEL.md: up to where 16 multiprocessors stay free at mini-batch 4, and up to where a layer fits."""
    for hidden_size in range(free, free - 260, -36):  # float32 sizes that 4 does not divide need more room
        assert tiles.choose_tiles(hidden_size, 4, dtype, backward, H200).blocks <= H200.usable
    assert_sound(tiles.choose_tiles(all_taken, 4, dtype, backward, H200), H200)
