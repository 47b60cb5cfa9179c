"""Which block owns which rows, and where its weights live: the planner of the persistent kernel. Pure Python, no GPU.

A *tile* is 16 rows of U, or 16 of its columns. A block owns ``rows`` rows of U; ``group_blocks`` blocks make a
*group*, which works on up to ``columns`` utterances at a time; ``groups`` of them stand side by side and take
the rest of the mini-batch in ``rounds``. In a block, ``product_warps`` share the inner dimension, and each keeps the
weights of ``register_tiles`` of its inner tiles in registers, the others in shared memory; ``cell_warps`` add up, apply
the cell and publish.

`choose_tiles` lists every split that fits the GPU and takes the one with the least estimated time per time step
(`Tiles.cycles`, times rounds). It prefers nothing: 16 multiprocessors stay free for NCCL wherever a split allows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache as remember
from itertools import product

DTYPES = ("bfloat16", "float16", "float32")
ACTIVATIONS = ("relu", "clipped_relu", "tanh")

_RESERVED = 16
_TILE = 16
_PARTIAL_BYTES = 512
_FLAG_BYTES = 256
_BLOCK_BYTES = 32
_ROWS = {"float32": (16, 24, 32, 48), "bfloat16": (16, 32, 48, 64, 96), "float16": (16, 32, 48, 64, 96)}
_COLUMNS = {"float32": (4, 8, 16), "bfloat16": (8, 16, 32), "float16": (8, 16, 32)}
_PRODUCT_WARPS = (3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 15)
_CHUNKS = {"float32": (1, 2, 3, 4, 6, 8, 12, 16), "bfloat16": (1, 2, 3, 4, 6), "float16": (1, 2, 3, 4, 6)}
"""Into how many pieces a warp may cut its inner tiles, if it has no registers to wait for all their words at once."""
_MOST_WORD_BYTES = 192
"""Bytes of words that a lane waits for together, however many registers there are."""


@dataclass(frozen=True)
class Sides:
    """An L2 of two sides: the parity of some bits of an address says on which side its line is at home.

    ``apart``: one of these bits; ``mask``: those below it. Wrong values cost time, not results (cuda/sides.cuh).
    """

    apart: int
    mask: int


SIDES = {"NVIDIA H200": Sides(apart=17, mask=1 << 12 | 1 << 13 | 1 << 15)}
"""By torch's name of the GPU: those on which ``tests/gpu/l2_probe.py`` has run (H200: 2026-12-01)."""


@dataclass(frozen=True)
class Gpu:
    """What the planner needs of a GPU: multiprocessors, bytes of shared memory that a block may have, whether
    registers are to be counted cautiously, as they are for other architectures than sm_90a (docs/KERNEL.md), and the
    sides of its L2 where they are known."""

    multiprocessors: int = 132
    shared_bytes: int = 227 * 1024
    cautious: bool = False
    sides: Sides | None = None

    @property
    def usable(self) -> int:
        """Multiprocessors a grid takes if it can: a grid of all would wait for NCCL's kernels, and they for it."""
        return self.multiprocessors - _RESERVED if self.multiprocessors >= 4 * _RESERVED else self.multiprocessors


@dataclass(frozen=True)
class Tiles:
    """One way to run a layer's half; see the module's text. ``dtype`` is the storage type's name; ``sides`` are given
    where what is published goes to both."""

    hidden_size: int
    batch_size: int
    dtype: str
    backward: bool
    rows: int
    columns: int
    product_warps: int
    register_tiles: int
    chunk_tiles: int
    groups: int
    sides: Sides | None = None

    @property
    def row_tiles(self) -> int:
        return _ceil(self.rows, _TILE)

    @property
    def column_tiles(self) -> int:
        return _ceil(self.columns, 8)

    @property
    def inner_tiles(self) -> int:
        return _ceil(self.hidden_size, _TILE)

    @property
    def warp_tiles(self) -> int:
        """Inner tiles of one product warp, those past the matrix included."""
        return self.chunk_tiles * _ceil(self.inner_tiles, self.product_warps * self.chunk_tiles)

    @property
    def group_blocks(self) -> int:
        return _ceil(_TILE * self.inner_tiles, self.rows)

    @property
    def blocks(self) -> int:
        return self.groups * self.group_blocks

    @property
    def rounds(self) -> int:
        return _ceil(self.batch_size, self.columns * self.groups)

    @property
    def output_tiles(self) -> int:
        """16x8 pieces of a step's result in a block."""
        return self.row_tiles * self.column_tiles

    @property
    def one_tile(self) -> bool:
        """A block whose step is one tile, its words waited for together, in 16 bits: ONE_TILE of cuda/shape.cuh."""
        return self.dtype != "float32" and self.output_tiles == 1 and self.warp_tiles == self.chunk_tiles

    @property
    def cell_warps(self) -> int:
        """As many as share the output tiles evenly, at most four, and none that costs all warps registers."""
        quarter = _ceil(self.product_warps + 1, 4)
        fitting = (w for w in (4, 3, 2) if self.output_tiles % w == 0 and _ceil(self.product_warps + w, 4) == quarter)
        return next(fitting, 1)

    @property
    def threads(self) -> int:
        return 32 * (self.product_warps + self.cell_warps)

    @property
    def registers(self) -> int:
        """Registers that a thread can have: a quarter of the block's warps shares a quarter of the register file."""
        return min(255, 512 // _ceil(self.threads, 128) // 8 * 8)

    @property
    def product_registers(self) -> int:
        """Registers that a product warp is expected to need: words, sums, weights and the rest.

        The rest is fitted to what ptxas was seen to need for sm_90a, case by case (docs/KERNEL.md), not derived.
        """
        words = self.chunk_tiles * self.column_tiles * self.quad_bytes // 4
        weights = self.register_tiles * self._tile_bytes // 128
        chunks = self.warp_tiles // self.chunk_tiles
        other = 28 if self.columns > 16 else 16 if self.columns > 8 else 0
        other += 34 if self.warp_tiles >= 40 else 6 if self.warp_tiles >= 24 else 0
        if self.dtype == "float32":
            if self.hidden_size % 4:  # number by number
                other += 20 + words // (2 if self.backward else 4)
            # Of few chunks ptxas keeps words' addresses, of two registers each.
            if chunks > 1:
                other += min(27 + 3 * chunks, 46) + (40 if self.columns > 4 else 0)
                if self.backward:
                    other += 37 if words > 40 and chunks >= 4 else max(0, 4 - chunks) * words // 2
                elif chunks < 4:
                    other += max(0, 2 * words - 32)
                    other += 4 if self.product_warps * self.warp_tiles == self.inner_tiles else 0
            else:
                other += 42 + words // 2 if self.backward else 38
            other += 2 * self.output_tiles
            sums = self.rows // 4 * self.columns
            if self.register_tiles < self.warp_tiles:
                sums += max(0, self.rows - 24)  # weights on their way from shared memory
        else:
            other += 24 if self.hidden_size % 4 else 0
            sums = self.output_tiles * 4 * (2 if self.output_tiles <= 2 else 1)
            # Many sums leave ptxas room for what is not needed together with all of them; and after tanh, forward, a
            # word is held as it came and as it is mended.
            many = self.output_tiles > 2 and self.columns <= 8
            if chunks > 1:
                other += 16 if self.columns > 8 else 0
                if many:
                    other += 45 if self.backward else max(37, words + 21)
                else:
                    other += 41 + 2 * self.output_tiles
                    few = self.backward and words > (24 if self.registers < 168 else 36)
                    other += 8 if few or (not self.backward and chunks > 2) else 0
            elif self.backward:
                other += (
                    max(16 if self.registers >= 168 else 26, 2 * words - 55)
                    if many
                    else max(28, words - 14) + 2 * self.output_tiles
                )
            elif many:
                other += max(58, 2 * words + 14) if words >= 20 else 33 - 3 * self.output_tiles
            else:
                other += max(28, 5 * words // 4 - 2) + 2 * self.output_tiles
        if self.one_tile and self.backward:  # eager, and with two copies of each word to choose from
            return max(other + words + sums, 10 + 10 * self.warp_tiles + (8 if self.warp_tiles > 8 else 0)) + weights
        return other + words + sums + weights

    @property
    def cautious_registers(self) -> int:
        """The same, as far as ptxas for any architecture was seen to go: with registers to know each word by."""
        words = self.chunk_tiles * self.column_tiles * self.quad_bytes // 4
        words += words // (2 if self.backward else 4)
        if self.dtype == "float32":
            sums = self.rows // 4 * self.columns + (10 if not self.backward else 0)
            if self.register_tiles < self.warp_tiles:
                sums += max(0, self.rows - 24)
        else:
            sums = self.output_tiles * 4 * (2 if self.output_tiles <= 2 else 1)
        other = 52 + (20 if self.hidden_size % 4 else 0) + (2 if self.output_tiles <= 2 else 4) * self.output_tiles
        other += 28 if self.columns > 16 else 16 if self.columns > 8 else 0
        if self.warp_tiles > self.chunk_tiles and self.columns > (4 if self.dtype == "float32" else 8):
            other += 34 if self.columns > 16 else 28
        elif self.warp_tiles >= 24:
            other += 6
        return other + words + sums + self.register_tiles * self._tile_bytes // 128

    @property
    def cell_registers(self) -> int:
        """Registers that a cell warp is expected to need, by thread."""
        if self.dtype == "float32":
            tile = 40 if self.rows <= 24 else 56
        else:
            tile = 28 if self.backward or self.columns > 8 else 36  # what is made ready a step ahead (cuda/shape.cuh)
        return 60 + tile * (self.output_tiles // self.cell_warps)

    @property
    def _tile_bytes(self) -> int:
        """Bytes of a block's weights in one inner tile."""
        return _TILE * self.rows * (4 if self.dtype == "float32" else 2)

    @property
    def kept_in_shared(self) -> int:
        """Bytes of a block's weights without room in registers."""
        return self.product_warps * (self.warp_tiles - self.register_tiles) * self._tile_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: weights, float32's stage for words, two turns' partial sums, flags."""
        stage = self.product_warps * self.chunk_tiles * self.column_tiles * 512 if self.dtype == "float32" else 0
        partials = 2 * self.product_warps * self.output_tiles * _PARTIAL_BYTES
        return self.kept_in_shared + stage + partials + _BLOCK_BYTES

    @property
    def quad_bytes(self) -> int:
        """Bytes in which four numbers travel: backward, half of them are tags."""
        return (16 if self.dtype == "float32" else 8) * (2 if self.backward else 1)

    @property
    def workspace_bytes(self) -> int:
        """Device memory of a launch: the give-up flag, and two buffers of a hidden state for each group; for two copies
        of them, room to begin at a multiple of twice the copies' distance."""
        if self.sides:
            return 4 << self.sides.apart
        words = self.product_warps * self.warp_tiles * 8 * self.column_tiles * 4
        return _FLAG_BYTES + self.groups * 2 * words * self.quad_bytes

    @property
    def cycles(self) -> float:
        """Estimated cycles of a time step in one round, at 1.7 GHz, fitted to an H200 (docs/KERNEL.md).

        The trip through L2 and a block's fixed work; the words a block reads, and those of a lane; the partial sums,
        written and read; another wait for each further chunk; each further tile of a cell warp; the product.
        """
        columns = min(self.batch_size, self.columns)
        words = self.inner_tiles * columns * 4 * self.quad_bytes / 64
        partials = self.product_warps * self.output_tiles * (4 if columns <= 4 else 8)
        chunks = self.warp_tiles // self.chunk_tiles
        extra_cells = self.output_tiles // self.cell_warps - 1
        in_quarter = _ceil(self.product_warps, 4) * self.warp_tiles  # tiles of the busiest quarter
        shared = self.kept_in_shared / 128
        lane_words = self.warp_tiles * self.column_tiles * self.quad_bytes / _TILE
        if self.dtype == "float32":
            # Multiply-adds; a warp's own chain, as long for many columns as for few; weights from shared memory.
            row_tiles = self.rows / _TILE
            product_cycles = row_tiles * (32 * _ceil(columns, 4) * in_quarter + 77 * self.warp_tiles) + 0.33 * shared
            fixed = 1310 + 1.0 * words + 27.5 * lane_words + partials + 225 * (chunks - 1) + 150 * extra_cells
        else:
            # Matrix instructions of the quarter and of one warp, and meanwhile weights come from shared memory.
            product_cycles = max(self.output_tiles * (2.7 * in_quarter + 2 * self.warp_tiles), 0.65 * shared)
            fixed = 1150 + 0.7 * words + 12 * (self.warp_tiles + lane_words) + 0.25 * partials + 390 * extra_cells
            fixed += (chunks - 1) * (165 + 150 * (self.column_tiles - 1))
            if self.backward and self.product_warps % 4 == 3:
                fixed += 90  # measured; why is not known
        # A warp alone in its quarter hides nothing.
        return fixed + product_cycles * (1.4 if self.product_warps <= 4 else 1.15 if self.product_warps < 8 else 1.0)

    def defines(self, activation: str) -> dict[str, int]:
        """The macros of prnn_ext/cuda/shape.cuh."""
        return {
            "PRNN_HIDDEN_SIZE": self.hidden_size,
            "PRNN_ROWS": self.rows,
            "PRNN_COLUMNS": self.columns,
            "PRNN_PRODUCT_WARPS": self.product_warps,
            "PRNN_CELL_WARPS": self.cell_warps,
            "PRNN_REGISTER_TILES": self.register_tiles,
            "PRNN_CHUNK_TILES": self.chunk_tiles,
            "PRNN_DTYPE": DTYPES.index(self.dtype),
            "PRNN_ACTIVATION": ACTIVATIONS.index(activation),
            "PRNN_BACKWARD": int(self.backward),
            **({"PRNN_SIDES": self.sides.apart, "PRNN_SIDE_MASK": self.sides.mask} if self.sides else {}),
        }

    def with_sides(self, sides: Sides | None) -> Tiles:
        """The same split, with a copy for each side of L2 where that is worth it and has room: one tile, one group."""
        one = replace(self, sides=None)
        fits = sides and one.one_tile and one.groups == 1 and one.workspace_bytes <= 1 << sides.apart
        return replace(one, sides=sides) if fits else one


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


@remember
def choose_tiles(hidden_size: int, batch_size: int, dtype: str, backward: bool, gpu: Gpu = Gpu()) -> Tiles:
    """The split with the least estimated time; raises ``ValueError`` where none fits the GPU."""
    if hidden_size < 1 or batch_size < 1:
        raise ValueError(f"hidden_size x batch_size is {hidden_size} x {batch_size}; both must be 1 or more.")
    found = splits(hidden_size, batch_size, dtype, backward, gpu)
    if found:
        return min(found, key=lambda tiles: (tiles.rounds * tiles.cycles, tiles.blocks)).with_sides(gpu.sides)
    raise ValueError(
        f"U of hidden_size {hidden_size} in {dtype} does not fit the registers and shared memory of "
        f"{gpu.multiprocessors} multiprocessors; use a smaller hidden_size, 16-bit storage, or backend='reference'."
    )


def splits(hidden_size: int, batch_size: int, dtype: str, backward: bool, gpu: Gpu) -> list[Tiles]:
    """Every split that fits; those that leave multiprocessors free, if there are any."""
    wanted = list(product(_ROWS[dtype], _COLUMNS[dtype], _PRODUCT_WARPS, _CHUNKS[dtype]))
    for blocks in (gpu.usable, gpu.multiprocessors):
        made = (
            make_tiles(hidden_size, batch_size, dtype, backward, *split, gpu.shared_bytes, blocks, gpu.cautious)
            for split in wanted
        )
        if found := [tiles for tiles in made if tiles]:
            return found
    return []


def make_tiles(
    hidden_size: int,
    batch_size: int,
    dtype: str,
    backward: bool,
    rows: int,
    columns: int,
    product_warps: int,
    chunks: int = 1,
    shared_bytes: int = 227 * 1024,
    blocks: int = 116,
    cautious: bool = False,
) -> Tiles | None:
    """This split with as many groups as are useful and fit ``blocks``, weights in registers first; None if it does not
    fit."""
    inner = _ceil(hidden_size, _TILE)
    groups = min(_ceil(batch_size, columns), blocks // _ceil(_TILE * inner, rows))
    if not groups:
        return None
    # A phase word spans two tiles, and so do float32's lanes.
    step = 1 if backward and dtype != "float32" else 2
    share = step * _ceil(inner, product_warps * step)
    if chunks > share // step:
        return None
    chunk = step * _ceil(share // step, chunks)
    if (
        chunk > step
        and chunk * _ceil(columns, 8) * (16 if dtype == "float32" else 8) * (1 + backward) > _MOST_WORD_BYTES
    ):
        return None
    # Every product warp must have something to wait for.
    warps = _ceil(inner, chunk * _ceil(share, chunk))

    def with_registers(register_tiles: int) -> Tiles:
        return Tiles(hidden_size, batch_size, dtype, backward, rows, columns, warps, register_tiles, chunk, groups)

    bare = with_registers(0)
    needed = max(bare.product_registers, bare.cautious_registers if cautious else 0)
    room = bare.registers - needed
    if room < 0 or bare.cell_registers > bare.registers:
        return None
    kept = min(bare.warp_tiles, room * 128 // bare._tile_bytes)
    tiles = with_registers(kept - kept % 2 if dtype == "float32" else kept)
    return tiles if tiles.shared_bytes <= shared_bytes else None
