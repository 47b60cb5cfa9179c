// One warp's share of U h (forward) or U^T delta (backward) for 16-bit numbers: mma.m16n8k16, float32 accumulators.
//
// The order of an mma's rows and of its inner dimension is ours to choose, as long as both operands agree. Lane
// (g, t) = (lane / 4, lane % 4) holds the right operand's column g and, of the weights, rows 2g, 2g+1 of a tile in the
// places of mma rows g, g+8. Of the inner dimension it holds a quad for each mma: of a tagged word its only one, of a phase
// word, which covers rows 8t .. 8t+7 of two neighbouring tiles, one for the first mma and one for the second.
#pragma once
#include "exchange.cuh"
#include "partials.cuh"
#include "sides.cuh"
#include "start.cuh"
#include "watch.cuh"

constexpr int TILE_BYTES = 512;  // of one 16x16 tile of weights
constexpr int WEIGHT_BYTES = PRODUCT_WARPS * SHARED_TILES * ROW_TILES * TILE_BYTES;
// Independent accumulators, where one tile would wait for itself.
constexpr int CHAINS = ONE_TILE ? 3 : OUTPUT_TILES <= 2 ? 2 : 1;
// Multiplies before the words are known to have arrived, and looks at them meanwhile: the OR tree, the vote and its branches
// hide behind the matrix instructions; a failed poll throws the sums away. The sums that count are of words that are all
// valid, added in the same order, so not a bit changes. Forward, and with more tiles, it was slower.
constexpr bool EAGER = ONE_TILE && TAGGED;

__device__ __forceinline__ void mma(float (&sum)[4], const uint4& a, unsigned b0, unsigned b1) {
#if PRNN_DTYPE == PRNN_BFLOAT16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

struct Product {
  static constexpr int TILES_PER_WORD = TAGGED ? 1 : 2;
  static constexpr int WORDS = CHUNK_TILES / TILES_PER_WORD * COLUMN_TILES;
  static_assert(CHUNK_TILES % TILES_PER_WORD == 0, "words must not straddle chunks");

  uint4 kept[REGISTER_TILES > 0 ? REGISTER_TILES : 1][ROW_TILES];
  uint4* shared;
  Sides sides;
  int warp, lane;
  Turning<ROTATED> turning;  // where the lane's first sum goes

  __device__ __forceinline__ void turn() { turning.turn(); }
  __device__ __forceinline__ int tile(int i) const { return warp * WARP_TILES + i; }

  // First of the four inner numbers that this lane has in the warp's i-th mma.
  __device__ __forceinline__ int inner(int i) const {
    const int t = lane % 4;
    return TAGGED ? 16 * tile(i) + 4 * t : 16 * tile(i - i % 2) + 8 * t + 4 * (i % 2);
  }

  __device__ __forceinline__ uint4 fragment(const Stored* weight, int first_row, int i, int m) const {
    const int row = first_row + 16 * m + 2 * (lane / 4);
    const Quad upper = weight_quad(weight, row, inner(i)), lower = weight_quad(weight, row + 1, inner(i));
    return make_uint4(upper.x, lower.x, upper.y, lower.y);
  }

  __device__ __forceinline__ uint4* shared_fragment(int i, int m) const {
    return shared + ((warp * SHARED_TILES + i - REGISTER_TILES) * ROW_TILES + m) * 32 + lane;
  }

  __device__ __forceinline__ Product(const Stored* weight, int first_row, char* shared_weights, int warp, int lane)
      : shared(reinterpret_cast<uint4*>(shared_weights)),
        warp(warp),
        lane(lane),
        turning(partial_tile(reinterpret_cast<float*>(shared_weights + WEIGHT_BYTES), 0, warp, 0) +
                partial_index(lane % 4, lane / 4 * 2)) {
#pragma unroll
    for (int i = 0; i < REGISTER_TILES; ++i)
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) kept[i][m] = fragment(weight, first_row, i, m);
    for (int i = REGISTER_TILES; i < WARP_TILES; ++i)
      for (int m = 0; m < ROW_TILES; ++m) *shared_fragment(i, m) = fragment(weight, first_row, i, m);
  }

  // Which copy of each word is nearer, given what `Sides::find` said.
  __device__ __forceinline__ void choose_sides(const char* buffers, unsigned even) {
    static_assert(!PRNN_SIDES || WORDS <= 16, "a bit for each word of two buffers");
    for (int w = 0; w < WORDS; ++w)
      for (int b = 0; b < 2; ++b)
        sides.note(w, b, buffers + b * BUFFER_BYTES + first_offset() + words_apart(0, w), even);
  }

  // Word w of a chunk: of which tile it is, and whether there is such a word.
  __device__ __forceinline__ int word_tile(int chunk, int w) const {
    return tile(chunk * CHUNK_TILES) + w / COLUMN_TILES * TILES_PER_WORD + (TAGGED ? 0 : lane % 4 / 2);
  }
  // Where this lane finds its first word of a step.
  __device__ __forceinline__ int first_offset() const {
    return quad_offset(word_tile(0, 0), lane / 4, TAGGED ? lane % 4 : lane % 2 * 2);
  }
  // How far behind it word w of a chunk lies: the same for every lane, so that one address does for all words.
  __device__ __forceinline__ static constexpr int words_apart(int chunk, int w) {
    return ((chunk * CHUNK_TILES + w / COLUMN_TILES * TILES_PER_WORD) * COLUMN_TILES + w % COLUMN_TILES) *
           (8 * 4 * (TAGGED ? WORD_BYTES : QUAD_BYTES));
  }
  __device__ __forceinline__ bool has_word(int chunk, int w, int columns) const {
    if (ALL_TILES == INNER_TILES && COLUMN_TILES == 1) return lane / 4 < columns;
    return word_tile(chunk, w) < INNER_TILES && w % COLUMN_TILES * 8 + lane / 4 < columns;
  }
  __device__ __forceinline__ static Quad half_of(const uint4& word, int i) {
    return i % TILES_PER_WORD == 0 ? make_uint2(word.x, word.y) : make_uint2(word.z, word.w);
  }

  // Adds a chunk's tiles, whose right operands are in `word`, to `sum`.
  typedef float Sums[CHAINS][ROW_TILES][COLUMN_TILES][4];
  __device__ __forceinline__ void multiply(Sums& sum, int chunk, const uint4 (&word)[WORDS]) const {
#pragma unroll
    for (int i = 0; i < CHUNK_TILES; ++i) {
      const int inner = chunk * CHUNK_TILES + i;
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {
        const uint4 a = inner < REGISTER_TILES ? kept[inner < REGISTER_TILES ? inner : 0][m] : *shared_fragment(inner, m);
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n) {
          const Quad b = half_of(word[i / TILES_PER_WORD * COLUMN_TILES + n], i);
          mma(sum[i % CHAINS][m][n], a, b.x, b.y);
        }
      }
    }
  }

  // The share of one step: waits for the vector published as `stamp` in buffer `which`, multiplies, leaves the sums in
  // `partials`. At steps that are `unusual` - h_0 enters, or the launch was given up - a slower path amends the words.
  // False: given up now or before, and what is left in `partials` is not a number.
  __device__ __forceinline__ bool step(float* partials, int parity, const char* buffers, unsigned which, unsigned stamp,
                                       int columns, const Patience& patience, const Start& start, bool good, Watch& watch) const {
    Sums sum = {};
    const bool unusual = start.applies() || !good;
    const char* base = buffers + which * BUFFER_BYTES + first_offset();
    asm volatile("" : "+l"(base));  // or an address of two registers would be kept for each word
    spin(FIRST_WAIT);
    watch.first();
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      uint4 word[WORDS];
#pragma unroll
      for (int w = 0; w < WORDS; ++w) word[w] = blank_word(stamp);
      const auto address = [&](int w) {
        return base + words_apart(chunk, w) + sides.of(chunk * WORDS + w, which);
      };
      const bool waits = start.step > 0 && good;
#pragma unroll
      for (int w = 0; w < WORDS; ++w) load_word(word[w], address(w), waits && has_word(chunk, w, columns));
      if (EAGER && !unusual) {
        // What is multiplied before the last word came is zeroed again; the last round's words are all good, or NaN.
        const auto meanwhile = [&] {
          watch.polled();
          zero(sum);
          multiply(sum, chunk, word);
        };
        good = await_words(word, stamp, patience, address, meanwhile);
        if (!good) meanwhile();
        watch.second();
        continue;
      }
      if (!unusual) {
        good = await_words(word, stamp, patience, address, [&] { watch.polled(); });
        watch.second();
        unstamp(word, stamp);
      } else {
        if (waits) good = await_words(word, stamp, patience, address);
        unstamp(word, stamp);
        enter(word, chunk, stamp, start);
        if (!good) poison(word);
      }
      multiply(sum, chunk, word);
    }
    write(sum, parity);
    return good;
  }

  __device__ __forceinline__ static void zero(Sums& sum) {
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain)
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[chain][m][n][j] = 0.0f;
  }

  // Puts h_0 in the columns that start at this step.
  __device__ __forceinline__ void enter(uint4 (&word)[WORDS], int chunk, unsigned stamp, const Start& start) const {
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n)
      if (start.applies_to(8 * n + lane / 4))
#pragma unroll
        for (int i = 0; i < CHUNK_TILES; ++i) {
          const Quad quad = start.quad(8 * n + lane / 4, inner(chunk * CHUNK_TILES + i));
          const unsigned sign = NEGATES ? stamp : 0;
          uint4& w = word[i / TILES_PER_WORD * COLUMN_TILES + n];
          (i % TILES_PER_WORD == 0 ? w.x : w.z) = quad.x ^ sign;
          (i % TILES_PER_WORD == 0 ? w.y : w.w) = quad.y ^ sign;
        }
  }

  __device__ __forceinline__ void write(const Sums& sum, int parity) const {
    const unsigned first = turning.at(parity);
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; ++n) {
        float total[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          total[j] = sum[0][m][n][j];
#pragma unroll
          for (int chain = 1; chain < CHAINS; ++chain) total[j] += sum[chain][m][n][j];
        }
        // The second pair lies four places further, and `place & 2` is the same there.
        const unsigned at = first + (m * COLUMN_TILES + n) * (PARTIAL_FLOATS * 4);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(total[0]), "f"(total[2]) : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 4 * 16 * 4), "f"(total[1]), "f"(total[3]) : "memory");
      }
  }
};
