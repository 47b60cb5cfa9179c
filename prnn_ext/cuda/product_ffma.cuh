// One warp's share of U h (forward) or U^T delta (backward) in float32: plain multiply-adds, weights as float4.
//
// Lane (k, r) = (lane / 4, lane % 4) multiplies the r-th quarter of the block's rows with every eighth quad of the inner
// dimension, the k-th. A lane waits for words in the order of the buffer, which is another: they pass through a piece of
// shared memory of the warp's own, whose rows of 8 quads are swizzled by column against bank conflicts. At the end the
// eight lanes that share rows exchange halves three times, so that of two rows and four columns each is left with one sum.
#pragma once
#include "exchange.cuh"
#include "partials.cuh"
#include "sides.cuh"
#include "start.cuh"
#include "watch.cuh"

constexpr int LANE_ROWS = BLOCK_ROWS / 4;
static_assert(LANE_ROWS % 2 == 0, "sums are exchanged for two rows at a time");
constexpr int STAGE_QUADS = CHUNK_TILES * COLUMN_TILES * 32;  // of one warp
constexpr int STAGE_BYTES = PRODUCT_WARPS * STAGE_QUADS * QUAD_BYTES;
constexpr int KEPT_BYTES = PRODUCT_WARPS * SHARED_TILES * BLOCK_ROWS * 16 * 4;
constexpr int WEIGHT_BYTES = KEPT_BYTES + STAGE_BYTES;
static_assert(CHUNK_TILES % 2 == 0 && REGISTER_TILES % 2 == 0, "a lane's quads come from pairs of tiles");

struct Product {
  static constexpr int WORDS = CHUNK_TILES * COLUMN_TILES * QUAD_WORDS;

  float4 kept[REGISTER_TILES > 0 ? REGISTER_TILES / 2 : 1][LANE_ROWS];
  float4* shared;
  uint4* stage;
  int warp, lane;

  __device__ __forceinline__ int tile(int i) const { return warp * WARP_TILES + i; }

  // Weights of the r-th row of this lane, for its quad in the warp's `pair`-th pair of tiles.
  __device__ __forceinline__ float4 weights(const Stored* weight, int first_row, int pair, int r) const {
    return widen(weight_quad(weight, first_row + LANE_ROWS * (lane % 4) + r, 16 * tile(2 * pair) + 4 * (lane / 4)));
  }

  __device__ __forceinline__ float4* shared_weights(int pair, int r) const {
    return shared + ((warp * SHARED_TILES / 2 + pair - REGISTER_TILES / 2) * LANE_ROWS + r) * 32 + lane;
  }

  __device__ __forceinline__ Product(const Stored* weight, int first_row, char* memory, int warp, int lane)
      : shared(reinterpret_cast<float4*>(memory)),
        stage(reinterpret_cast<uint4*>(memory + KEPT_BYTES) + warp * STAGE_QUADS),
        warp(warp),
        lane(lane) {
#pragma unroll
    for (int pair = 0; pair < REGISTER_TILES / 2; ++pair)
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) kept[pair][r] = weights(weight, first_row, pair, r);
    for (int pair = REGISTER_TILES / 2; pair < WARP_TILES / 2; ++pair)
      for (int r = 0; r < LANE_ROWS; ++r) *shared_weights(pair, r) = weights(weight, first_row, pair, r);
  }

  // Word w of a chunk: where this lane finds it, and whether there is such a word.
  __device__ __forceinline__ int word_tile(int chunk, int w) const {
    return tile(chunk * CHUNK_TILES) + w / (COLUMN_TILES * QUAD_WORDS);
  }
  __device__ __forceinline__ int word_column(int w) const {
    return w / QUAD_WORDS % COLUMN_TILES * 8 + lane % 8;
  }
  __device__ __forceinline__ int word_offset(int chunk, int w) const {
    return quad_offset(word_tile(chunk, w), word_column(w), lane / 8) + w % QUAD_WORDS * WORD_BYTES;
  }
  __device__ __forceinline__ bool has_word(int chunk, int w, int columns) const {
    return word_tile(chunk, w) < INNER_TILES && word_column(w) < columns;
  }

  __device__ __forceinline__ void turn() {}
  __device__ __forceinline__ void choose_sides(const char*, unsigned) {}  // it reads the first copy

  // Place in the stage of quad k (0..7) of a pair of tiles, for a column.
  __device__ __forceinline__ static int staged(int pair, int column, int k) {
    return (pair * COLUMN_TILES * 8 + column) * 8 + (k ^ (column % 8));
  }

  // The share of one step: waits for the vector published as `stamp` in buffer `which`, multiplies, leaves the sums in
  // `partials`. At steps that are `unusual` - h_0 enters, or the launch was given up - a slower path amends the words.
  // False: given up now or before, and what is left in `partials` is not a number.
  __device__ __forceinline__ bool step(float* partials, int parity, const char* buffers, unsigned which, unsigned stamp,
                                       int columns, const Patience& patience, const Start& start, bool good, Watch& watch) const {
    float sum[LANE_ROWS][COLUMNS] = {};
    const char* buffer = buffers + which * BUFFER_BYTES;
    const bool unusual = start.applies() || !good;
    spin(FIRST_WAIT);
    watch.first();
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      uint4 word[WORDS];
#pragma unroll
      for (int w = 0; w < WORDS; ++w) word[w] = blank_word(stamp);
      const auto address = [&](int w) { return buffer + word_offset(chunk, w); };
      const bool waits = start.step > 0 && good;
#pragma unroll
      for (int w = 0; w < WORDS; ++w) load_word(word[w], address(w), waits && has_word(chunk, w, columns));
      if (waits) good = await_words(word, stamp, patience, address, [&] { watch.polled(); });
      watch.second();
      unstamp(word, stamp);
      if (unusual) {
        enter(word, chunk, stamp, start);
        if (!good) poison(word);
      }
      put(word);
      __syncwarp();
      multiply(sum, chunk, columns);
      __syncwarp();
    }
    write(sum, partials, parity, columns);
    return good;
  }

  // Puts h_0 in the columns that start at this step.
  __device__ __forceinline__ void enter(uint4 (&word)[WORDS], int chunk, unsigned stamp, const Start& start) const {
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
      if (!TAGGED && start.applies_to(word_column(w))) {
        const Quad quad = start.quad(word_column(w), 16 * word_tile(chunk, w) + 4 * (lane / 8));
        const unsigned sign = NEGATES ? stamp : 0;
        word[w] = make_uint4(quad.x ^ sign, quad.y ^ sign, quad.z ^ sign, quad.w ^ sign);
      }
  }

  __device__ __forceinline__ void put(const uint4 (&word)[WORDS]) const {
#pragma unroll
    for (int w = 0; w < WORDS; w += QUAD_WORDS) {
      const int i = w / (COLUMN_TILES * QUAD_WORDS);
      const uint4& second = word[w + QUAD_WORDS - 1];
      stage[staged(i / 2, word_column(w), i % 2 * 4 + lane / 8)] =
          TAGGED ? make_uint4(word[w].x, word[w].y, second.x, second.y) : word[w];
    }
  }

  __device__ __forceinline__ void multiply(float (&sum)[LANE_ROWS][COLUMNS], int chunk, int columns) const {
#pragma unroll
    for (int i = 0; i < CHUNK_TILES / 2; ++i) {
      const int pair = chunk * (CHUNK_TILES / 2) + i;
      float4 a[LANE_ROWS];
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r)
        a[r] = 2 * pair < REGISTER_TILES ? kept[2 * pair < REGISTER_TILES ? pair : 0][r] : *shared_weights(pair, r);
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        if (c / 4 * 4 < columns) {
          const float4 b = widen(stage[staged(i, c, lane / 4)]);
#pragma unroll
          for (int r = 0; r < LANE_ROWS; ++r) {
            sum[r][c] = fmaf(a[r].x, b.x, sum[r][c]);
            sum[r][c] = fmaf(a[r].y, b.y, sum[r][c]);
            sum[r][c] = fmaf(a[r].z, b.z, sum[r][c]);
            sum[r][c] = fmaf(a[r].w, b.w, sum[r][c]);
          }
        }
    }
  }

  // Adds up over the eight lanes that share rows: of two rows and four columns each keeps one sum.
  __device__ __forceinline__ void write(const float (&sum)[LANE_ROWS][COLUMNS], float* partials, int parity,
                                        int columns) const {
    const bool high = lane & 16, odd = lane & 8, lower = lane & 4;
#pragma unroll
    for (int c = 0; c < COLUMNS; c += 4)
      if (c < columns) {
        const int column = c + (high ? 2 : 0) + (odd ? 1 : 0);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r += 2) {
          float of_row[2];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float* s = sum[r + j] + c;
            const float even = exchange(high ? s[2] : s[0], high ? s[0] : s[2], 16);
            const float other = exchange(high ? s[3] : s[1], high ? s[1] : s[3], 16);
            of_row[j] = exchange(odd ? other : even, odd ? even : other, 8);
          }
          const float total = exchange(lower ? of_row[1] : of_row[0], lower ? of_row[0] : of_row[1], 4);
          const int row = LANE_ROWS * (lane % 4) + r + (lower ? 1 : 0);
          float* tile = partial_tile(partials, parity, warp, row / 16 * COLUMN_TILES + c / 8);
          tile[partial_index(place_of(column % 8), row % 16)] = total;
        }
      }
  }

  __device__ __forceinline__ static float exchange(float mine, float theirs, int distance) {
    return mine + __shfl_xor_sync(0xffffffffu, theirs, distance);
  }
};
