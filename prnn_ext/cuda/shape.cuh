// Sizes of one compiled variant, all known at compile time; prnn_ext/tiles.py chooses the macros and explains them.
//
// Units: a *tile* is 16 rows of the recurrent matrix, or 16 of its columns (the inner dimension); a *column* is one
// utterance; a *quad* is 4 consecutive rows of one column, the piece in which hidden states travel.
#pragma once

#define PRNN_BFLOAT16 0
#define PRNN_FLOAT16 1
#define PRNN_FLOAT32 2

// Two copies of what is published, 2^PRNN_SIDES bytes apart, one at home on each side of L2; 0 for one copy (sides.cuh).
#ifndef PRNN_SIDES
#define PRNN_SIDES 0
#define PRNN_SIDE_MASK 0
#endif

constexpr int HIDDEN = PRNN_HIDDEN_SIZE;
constexpr int BLOCK_ROWS = PRNN_ROWS;                // rows that a block owns: of 16-bit weights, whole tiles
constexpr int COLUMNS = PRNN_COLUMNS;                // columns that a block works on at a time: 4, or a multiple of 8
constexpr int PRODUCT_WARPS = PRNN_PRODUCT_WARPS;    // warps that share the inner dimension of the product
constexpr int CELL_WARPS = PRNN_CELL_WARPS;          // warps that sum, activate, publish and store
constexpr int REGISTER_TILES = PRNN_REGISTER_TILES;  // inner tiles of each warp whose weights stay in registers
constexpr int CHUNK_TILES = PRNN_CHUNK_TILES;        // inner tiles whose words a warp waits for together

constexpr int INNER_TILES = (HIDDEN + 15) / 16;
constexpr int COLUMN_TILES = (COLUMNS + 7) / 8;
constexpr int ROW_TILES = (BLOCK_ROWS + 15) / 16;
constexpr int GROUP_BLOCKS = (16 * INNER_TILES + BLOCK_ROWS - 1) / BLOCK_ROWS;
constexpr int CHUNKS = (INNER_TILES + PRODUCT_WARPS * CHUNK_TILES - 1) / (PRODUCT_WARPS * CHUNK_TILES);
constexpr int WARP_TILES = CHUNKS * CHUNK_TILES;
constexpr int SHARED_TILES = WARP_TILES > REGISTER_TILES ? WARP_TILES - REGISTER_TILES : 0;
constexpr int OUTPUT_TILES = ROW_TILES * COLUMN_TILES;  // 16x8 pieces of a step's result in a block
constexpr int CELL_TILES = OUTPUT_TILES / CELL_WARPS;
constexpr int THREADS = 32 * (PRODUCT_WARPS + CELL_WARPS);

// A block whose step is one mma tile, in 16 bits, and whose words are waited for together: what a mini-batch of up to 8
// comes to in all but the largest layers. There latency is all, and registers are left to shorten it with; what helps there
// was measured to cost time elsewhere (docs/KERNEL.md).
constexpr bool SIXTEEN_BITS = PRNN_DTYPE != PRNN_FLOAT32;
constexpr bool ONE_TILE = SIXTEEN_BITS && OUTPUT_TILES == 1 && CHUNKS == 1;
// A step's addresses, stamp and sign are made ready at the end of the step before, and addresses of partial sums are
// registers that change places: or ptxas computes them between the barrier and what waits for it, whatever the source's
// order. With several column tiles, and backward with many tiles or chunks, there are no registers for it.
constexpr bool ROTATED = SIXTEEN_BITS && COLUMN_TILES == 1 && (!PRNN_BACKWARD || (CHUNKS == 1 && ROW_TILES <= 3));
static_assert(ONE_TILE || !PRNN_SIDES, "more words have no registers to remember a side each");

static_assert(CELL_TILES * CELL_WARPS == OUTPUT_TILES, "cell warps must share the output tiles evenly");
static_assert((PRODUCT_WARPS - 1) * WARP_TILES < INNER_TILES, "every product warp must wait for something");
static_assert(REGISTER_TILES <= WARP_TILES, "no more register tiles than a warp has");

// What a launch is given. Pointers to arguments that were not given are null.
struct Launch {
  const void* input;         // x, or grad_output in the backward pass: [T, B, H]
  const void* weight;        // [H, H]
  const void* first;         // h_0, or grad_h_n in the backward pass: [B, H]
  const int* lengths;        // [B]
  const float* scale;        // [H], forward only
  const float* shift;        // [H], forward only
  const void* hidden;        // output of the forward pass [T, B, H], backward only
  void* output;              // output, or delta: [T, B, H]
  void* last;                // h_n, or grad_h_0: [B, H]
  char* workspace;           // zeroed; see exchange.cuh
  unsigned* status;          // word in host memory that reports errors; see patience.cuh
  unsigned long long limit;  // longest wait in nanoseconds
  int steps;                 // T
  int batch;                 // B
  int reverse;
};

__device__ __forceinline__ int clamped_length(const Launch& launch, int column) {
  return launch.lengths == nullptr ? launch.steps : max(0, min(launch.lengths[column], launch.steps));
}

// The longest of `count` utterances from `first` on, the same in every lane.
__device__ __forceinline__ int longest_of(const Launch& launch, int first, int count) {
  int longest = 0;
#pragma unroll 1
  for (int c = 0; c < count; ++c) longest = max(longest, clamped_length(launch, first + c));
  return longest;
}
