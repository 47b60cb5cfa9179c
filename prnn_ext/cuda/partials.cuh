// Each product warp has summed over its share of the inner dimension; the shares meet here, in shared memory.
//
// A tile's 128 partial sums lie as [place][quarter ^ (place & 2)][4 rows], place = column / 2 + 4 * (column % 2): warps
// write 8 bytes and read 16 bytes a lane without bank conflicts. Two buffers alternate with the turns, and two named
// barriers: product warps arrive and go on to wait for the next words; only the cell warps stop. A product warp two turns
// ahead has words that depend, through every block, on what this block's cells published after reading this buffer - so it
// cannot arrive twice before the cells have passed once. Where it does not wait for words this must be kept up otherwise:
// between rounds all warps of a block meet, and a warp that gave up follows the cells' own count (`follow`).
#pragma once
#include "weights.cuh"

constexpr int TURN_BYTES = PRODUCT_WARPS * OUTPUT_TILES * PARTIAL_FLOATS * 4;  // of one buffer of partial sums

__device__ __forceinline__ float* partial_tile(float* partials, int parity, int warp, int tile) {
  return partials + ((parity * PRODUCT_WARPS + warp) * OUTPUT_TILES + tile) * PARTIAL_FLOATS;
}

__device__ __forceinline__ void partials_ready(int parity) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(1 + parity), "n"(THREADS) : "memory");
}

__device__ __forceinline__ void await_partials(int parity) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(1 + parity), "n"(THREADS) : "memory");
}

// Cell warps count the turns whose barrier they have passed.
__device__ __forceinline__ void passed(volatile unsigned* counts, int cell_warp, unsigned turn) {
  counts[cell_warp] = turn + 1;
}

// Waits until the cells have passed the turn before last; they do, since every product warp waits or gives up.
__device__ __forceinline__ void follow(const volatile unsigned* counts, unsigned turn) {
#pragma unroll 1
  for (int warp = 0; warp < CELL_WARPS; ++warp)
    while (counts[warp] + 1 < turn) {
    }
}

__device__ __forceinline__ int place_of(int column) { return column / 2 + 4 * (column % 2); }
__device__ __forceinline__ int column_at(int place) { return place % 4 * 2 + place / 4; }

// Index in a tile of row `row` (0..15) of the column at `place`.
__device__ __forceinline__ int partial_index(int place, int row) {
  return place * 16 + (((row / 4) ^ (place & 2)) * 4) + row % 4;
}

// An address among this turn's partial sums, given that of an even turn: with ROTATED two registers change places.
template <bool IN_REGISTERS>
struct Turning {
  unsigned now, both;  // this turn's address, and the sum of both

  __device__ __forceinline__ explicit Turning(const float* in_even_turns)
      : now(static_cast<unsigned>(__cvta_generic_to_shared(in_even_turns))) {
    both = 2 * now + TURN_BYTES;
    asm volatile("" : "+r"(now), "+r"(both));  // or it would be computed anew every turn
  }
  __device__ __forceinline__ unsigned at(unsigned) const { return now; }
  __device__ __forceinline__ void turn() { now = both - now; }
};

template <>
struct Turning<false> {
  unsigned even;

  __device__ __forceinline__ explicit Turning(const float* in_even_turns)
      : even(static_cast<unsigned>(__cvta_generic_to_shared(in_even_turns))) {}
  __device__ __forceinline__ unsigned at(unsigned parity) const {
    unsigned address = even + parity * TURN_BYTES;
    asm volatile("" : "+r"(address));
    return address;
  }
  __device__ __forceinline__ void turn() {}
};

// The sum of all warps' shares for one quad, always in the same order. Anything where the lane is not `present`: with one
// tile it then reads nothing, which at 4 columns of 8 halves the traffic of shared memory.
__device__ __forceinline__ float4 sum_partials(unsigned first, bool present) {
  float4 sum[2] = {};
#pragma unroll
  for (int warp = 0; warp < PRODUCT_WARPS; ++warp) {
    float4 part;
    const unsigned address = first + warp * (OUTPUT_TILES * PARTIAL_FLOATS * 4);
    if (ONE_TILE)
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                   : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w)
                   : "r"(address), "r"(static_cast<int>(present))
                   : "memory");
    else
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w)
                   : "r"(address)
                   : "memory");
    float4& into = sum[warp % 2];
    into = warp < 2 ? part : make_float4(into.x + part.x, into.y + part.y, into.z + part.z, into.w + part.w);
  }
  return make_float4(sum[0].x + sum[1].x, sum[0].y + sum[1].y, sum[0].z + sum[1].z, sum[0].w + sum[1].w);
}
