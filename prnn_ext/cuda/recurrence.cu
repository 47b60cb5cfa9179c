// The persistent kernel: one launch runs the recurrence over all time steps, weights never leaving the chip.
//
// A *group* of GROUP_BLOCKS blocks shares U by rows and works on up to COLUMNS utterances at a time; groups stand side by
// side and take the mini-batch's remaining columns in rounds. In a block, product warps wait for the last hidden state
// (exchange.cuh), multiply their share of the inner dimension (product_*.cuh) and leave partial sums (partials.cuh); cell
// warps add those up, apply the cell (forward_cells.cuh, backward_cells.cuh), publish the block's rows and store them.
// The grid is launched cooperatively, so all its blocks are resident and every word waited for will be written.
#include "shape.cuh"
#include "exchange.cuh"
#include "product.cuh"
#if PRNN_BACKWARD
#include "backward_cells.cuh"
#else
#include "forward_cells.cuh"
#endif

struct Place {
  int group, groups, rank;  // rank: the block's place in its group

  __device__ Place()
      : group(blockIdx.x / GROUP_BLOCKS), groups(gridDim.x / GROUP_BLOCKS), rank(blockIdx.x % GROUP_BLOCKS) {}
};

// Variants for tests: PRNN_DELAY holds blocks back at random, up to so many nanoseconds; PRNN_LOST_BLOCK never comes.
__device__ __forceinline__ void delay(int step) {
#ifdef PRNN_DELAY
  unsigned mixed = (static_cast<unsigned>(nanoseconds()) + blockIdx.x) * 2654435761u ^ step * 40503u;
  mixed ^= mixed >> 13;
  mixed *= 2246822519u;
  if ((mixed >> 16) % 4 == 0) __nanosleep(mixed % PRNN_DELAY);
#endif
}

__device__ __forceinline__ bool is_lost() {
#ifdef PRNN_LOST_BLOCK
  return blockIdx.x == PRNN_LOST_BLOCK;
#else
  return false;
#endif
}

// One round: the columns that a group works on together.
struct Round {
  int first_column, columns, steps, turns;  // steps: frames of its longest utterance; turns: products taken

  __device__ __forceinline__ Round(const Launch& launch, int first_column)
      : first_column(first_column),
        columns(min(COLUMNS, launch.batch - first_column)),
        steps(longest_of(launch, first_column, columns)),
        turns(steps > 0 ? steps + Cell::STEPS_AFTER : 0) {}
};

// A block's shared memory: weights without room in registers, partial sums, then these.
struct Block {
  volatile unsigned passed[CELL_WARPS];  // see partials.cuh
  volatile unsigned stalled;             // a product warp gave up
  volatile unsigned second;              // see sides.cuh; with two copies alone
};

__device__ __forceinline__ void run_products(const Launch& launch, const Place& place, char* shared, Block& block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Product product(static_cast<const Stored*>(launch.weight), place.rank * BLOCK_ROWS, shared, warp, lane);
  float* partials = reinterpret_cast<float*>(shared + WEIGHT_BYTES);
  const Patience patience(launch, reinterpret_cast<unsigned*>(launch.workspace));
  const char* buffers = group_buffers(launch.workspace, place.group);
  if (PRNN_SIDES) product.choose_sides(buffers, block.second);
  bool good = true;
  Watch watch;
  unsigned published = 0, turn = 0;
  for (int column = place.group * COLUMNS; column < launch.batch; column += place.groups * COLUMNS) {
    const Round round(launch, column);
    Start start(launch, column, round.columns, round.steps);
    for (start.step = 0; start.step < round.turns; ++start.step, ++turn) {
      // At a round's first step nothing has been published, and the words are h_0 or zeros.
      const unsigned last = published - 1, stamp = start.step > 0 ? stamp_of(last) : 0;
      good = product.step(partials, turn % 2, buffers, last % 2, stamp, round.columns, patience, start, good, watch);
      if (!good) {
        block.stalled = 1;
        follow(block.passed, turn);
      }
      partials_ready(turn % 2);
      product.turn();
      watch.third();
      watch.keep(launch, turn);
      if (start.step + 1 < round.turns) ++published;
    }
    __syncthreads();
  }
}

__device__ __forceinline__ void run_cells(const Launch& launch, const Place& place, char* shared, Block& block) {
  const int warp = threadIdx.x / 32 - PRODUCT_WARPS, lane = threadIdx.x % 32;
  const int in_tile = column_at(lane / 4), quarter = lane % 4;
  const auto tile_of = [&](int i) { return warp * CELL_TILES + i; };
  const auto column_of = [&](int i) { return tile_of(i) % COLUMN_TILES * 8 + in_tile; };
  const auto row_of = [&](int i) { return tile_of(i) / COLUMN_TILES * 16 + 4 * quarter; };
  const int first_row = place.rank * BLOCK_ROWS;
  float* partials = reinterpret_cast<float*>(shared + WEIGHT_BYTES);
  // Where the lane finds its first tile's quad in the first warp's share.
  Turning<ROTATED> first_share(partial_tile(partials, 0, 0, tile_of(0)) + partial_index(lane / 4, 4 * quarter));
  char* buffers = group_buffers(launch.workspace, place.group);
  Watch watch;
  unsigned published = 0, turn = 0;
  for (int column = place.group * COLUMNS; column < launch.batch; column += place.groups * COLUMNS) {
    const Round round(launch, column);
    Cell cells[CELL_TILES];
#pragma unroll
    for (int i = 0; i < CELL_TILES; ++i)
      cells[i].begin(launch, first_row + row_of(i), column + column_of(i),
                     column_of(i) < round.columns && row_of(i) < BLOCK_ROWS, round.steps);
    typename Cell::Term terms[CELL_TILES];
    Envelope envelopes[CELL_TILES];
    bool publishes = false;
    float sign = 1.0f;
    // All that does not need the sum, so that only the sum itself follows the barrier.
    const auto prepare = [&](int step) {
#pragma unroll
      for (int i = 0; i < CELL_TILES; ++i) terms[i] = cells[i].take(step);
      publishes = step + 1 < round.turns;
      sign = NEGATES && step > 0 && stamp_of(published - 1) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < CELL_TILES; ++i) {
        const int row = first_row + row_of(i);
        envelopes[i].address(buffers + published % 2 * BUFFER_BYTES, quad_offset(row / 16, column_of(i), row / 4 % 4),
                             stamp_of(published), terms[i].active,
                             publishes && cells[i].present && row < 16 * INNER_TILES);
      }
    };
    if (ROTATED && round.turns > 0) prepare(0);
    for (int step = 0; step < round.turns; ++step, ++turn) {
      if (!ROTATED) prepare(step);
      const unsigned shares = first_share.at(turn % 2);
      await_partials(turn % 2);
      watch.first();
      delay(step);
      float4 products[CELL_TILES];
      Quad quads[CELL_TILES];
#pragma unroll
      for (int i = 0; i < CELL_TILES; ++i) {
        products[i] = sum_partials(shares + i * (PARTIAL_FLOATS * 4), cells[i].present);
        quads[i] = cells[i].advance(terms[i], products[i], sign);
        envelopes[i].publish(quads[i]);
      }
      watch.second();
      watch.keep(launch, turn);
      // The others wait for what was published, nobody for what is stored.
#pragma unroll
      for (int i = 0; i < CELL_TILES; ++i) cells[i].store(step, terms[i], quads[i], products[i]);
      passed(block.passed, warp, turn);
      if (publishes) ++published;
      first_share.turn();
      if (ROTATED && step + 1 < round.turns) prepare(step + 1);
    }
    const bool stalled = block.stalled != 0;
#pragma unroll
    for (int i = 0; i < CELL_TILES; ++i) cells[i].fill_rest(stalled);
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) recurrence(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(16) char shared[];
  Block& block = *reinterpret_cast<Block*>(shared + WEIGHT_BYTES + PARTIALS_BYTES);
  const Place place;
  if (is_lost()) return;
  if (threadIdx.x < CELL_WARPS) block.passed[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    block.stalled = 0;
    if (blockIdx.x == 0 && launch.lengths != nullptr)
#pragma unroll 1
      for (int b = 0; b < launch.batch; ++b)
        if (launch.lengths[b] < 0 || launch.lengths[b] > launch.steps) report(launch.status, STATUS_LENGTH);
  }
  if (PRNN_SIDES && threadIdx.x == 0)
    block.second = Sides::find(group_buffers(launch.workspace, place.group), place.rank);
  __syncthreads();
  if (threadIdx.x < 32 * PRODUCT_WARPS)
    run_products(launch, place, shared, block);
  else
    run_cells(launch, place, shared, block);
}
