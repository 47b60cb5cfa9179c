// How a hidden state travels between blocks: through L2, in words that carry their own proof of validity.
//
// Two buffers alternate: the vector published as number n (0, 1, 2, ... over all rounds of a launch) goes to buffer
// n % 2. A block publishes number n only after it has read all of n-1, which every block published only after it had
// read all of n-2: so nobody still reads the buffer that n overwrites, and a word of the buffer is only ever n-2 or n.
// A reader therefore needs no barrier and no fence: it loads its own words until each says "n".
//
// Two ways of saying so:
//  - phase (forward pass): f leaves one bit of every number unused - the sign after a ReLU, the highest exponent bit
//    after tanh, since |h| <= 1 - and that bit holds 1, 1, 0, 0, 1, 1, ... for n = 0, 1, 2, ... A zeroed buffer is
//    invalid. After a ReLU nobody takes the bit out again: the product of -h is minus the product, and the cells, which
//    know n, turn it round. Under tanh NaN loses the bit and is mended on arrival: no other |h| lies above 1.
//  - tag (backward pass, whose numbers use every bit): each 16-byte word holds 8 bytes of numbers and n + 1 twice.
//    It is stored and loaded as one .b128 access, which PTX defines as a single one.
//
// A buffer holds, for each tile of 16 rows and each column, its four quads one after the other: what one block publishes
// of a column fills whole 32-byte sectors.
#pragma once
#include "number.cuh"
#include "activation.cuh"
#include "patience.cuh"

#if PRNN_DTYPE == PRNN_FLOAT32
#if PRNN_ACTIVATION == PRNN_TANH
constexpr unsigned SPARE = 0x40000000u, BELOW_SPARE = 0x3fffffffu, TO_CARRY = 0x00400000u;
#else
constexpr unsigned SPARE = 0x80000000u;
#endif
#else
#if PRNN_ACTIVATION == PRNN_TANH
constexpr unsigned SPARE = 0x40004000u, BELOW_SPARE = 0x3fff3fffu, TO_CARRY = 0x00400040u;
#else
constexpr unsigned SPARE = 0x80008000u;
#endif
#endif

constexpr bool TAGGED = PRNN_BACKWARD;
constexpr int WORD_BYTES = 16;
constexpr int QUAD_WORDS = TAGGED ? QUAD_BYTES / 8 : 1;  // words that carry one quad (a phase word may carry two)
constexpr int ALL_TILES = PRODUCT_WARPS * WARP_TILES;
constexpr int BUFFER_BYTES = ALL_TILES * COLUMN_TILES * 8 * 4 * (TAGGED ? 2 * QUAD_BYTES : QUAD_BYTES);
constexpr int FLAG_BYTES = 256;  // the give-up flag of patience.cuh, before the buffers of all groups

// Cycles after its own product before a warp first asks for the next words: they cannot have arrived earlier, and asking
// in vain slows down those who publish.
#ifndef PRNN_FIRST_WAIT
#define PRNN_FIRST_WAIT 400
#endif
constexpr int FIRST_WAIT = PRNN_FIRST_WAIT;

constexpr int APART = PRNN_SIDES ? 1 << PRNN_SIDES : 0;  // bytes between two copies, where there are two: of one group
static_assert(!PRNN_SIDES || FLAG_BYTES + 2 * BUFFER_BYTES <= APART, "copies must not overlap");

__device__ __forceinline__ char* group_buffers(char* workspace, int group) {
#if PRNN_SIDES
  const size_t step = 2 * static_cast<size_t>(APART);
  workspace += (step - (reinterpret_cast<size_t>(workspace) + FLAG_BYTES) % step) % step;
#endif
  return workspace + FLAG_BYTES + static_cast<size_t>(group) * 2 * BUFFER_BYTES;
}

__device__ __forceinline__ void spin(int cycles) {
  const unsigned start = clock();
  while (static_cast<unsigned>(clock()) - start < static_cast<unsigned>(cycles)) {
  }
}

// Byte offset in a buffer of the quad of rows 16*tile + 4*quarter of a column.
__device__ __forceinline__ int quad_offset(int tile, int column, int quarter) {
  const int columns_before = (tile * COLUMN_TILES + column / 8) * 8;
#if PRNN_DTYPE == PRNN_FLOAT32
  // Neighbouring lanes read the quads of neighbouring columns (product_ffma.cuh).
  return (columns_before * 4 + quarter * 8 + column % 8) * QUAD_WORDS * WORD_BYTES;
#else
  return ((columns_before + column % 8) * 4 + quarter) * (TAGGED ? WORD_BYTES : QUAD_BYTES);
#endif
}

// What number n looks like: the phase mask or the tag.
__device__ __forceinline__ unsigned stamp_of(unsigned n) { return TAGGED ? n + 1 : ((n >> 1) & 1 ? 0u : SPARE); }

constexpr bool NEGATES = !TAGGED && PRNN_ACTIVATION != PRNN_TANH;  // odd phases carry -h

__device__ __forceinline__ void store_word(char* address, bool really, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 lo, hi;\n.reg .b128 word;\nsetp.ne.b32 p, %5, 0;\nmov.b64 lo, {%1, %2};\n"
      "mov.b64 hi, {%3, %4};\nmov.b128 word, {lo, hi};\n@p st.relaxed.gpu.global.b128 [%0], word;\n}" ::"l"(address),
      "r"(x), "r"(y), "r"(z), "r"(w), "r"(static_cast<int>(really))
      : "memory");
}

// Where and how a quad will be published: made ready before the quad is.
struct Envelope {
  char* to;
  unsigned stamp, mask;
  int really;

  // `active`: the quad counts; otherwise zeros are published in its place.
  __device__ __forceinline__ void address(char* buffer, int offset, unsigned with_stamp, bool active, bool publishes) {
    to = buffer + offset;
    stamp = with_stamp;
    mask = active ? (TAGGED ? ~0u : ~SPARE) : 0u;
    really = publishes;
    asm volatile("" : "+l"(to), "+r"(stamp), "+r"(mask), "+r"(really));
  }

  __device__ __forceinline__ void publish(Quad quad) const {
    put(to, quad);
    if (PRNN_SIDES) put(to + APART, quad);
  }
  __device__ __forceinline__ void put(char* to, Quad quad) const {
#if PRNN_DTYPE == PRNN_FLOAT32
    if (TAGGED) {
      store_word(to, really, quad.x & mask, quad.y & mask, stamp, stamp);
      store_word(to + WORD_BYTES, really, quad.z & mask, quad.w & mask, stamp, stamp);
    } else {
      store_word(to, really, (quad.x & mask) | stamp, (quad.y & mask) | stamp, (quad.z & mask) | stamp,
                 (quad.w & mask) | stamp);
    }
#else
    if (TAGGED)
      store_word(to, really, quad.x & mask, quad.y & mask, stamp, stamp);
    else
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};\n}" ::"l"(to),
                   "r"((quad.x & mask) | stamp), "r"((quad.y & mask) | stamp), "r"(really)
                   : "memory");
#endif
  }
};

// Loads a word where `wanted`, leaves it alone otherwise: a predicated load, so that all of a warp are in flight.
__device__ __forceinline__ void load_word(uint4& word, const char* address, bool wanted) {
  if (TAGGED)
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 lo, hi;\n.reg .b128 word;\nsetp.ne.b32 p, %5, 0;\n"
        "mov.b64 lo, {%0, %1};\nmov.b64 hi, {%2, %3};\nmov.b128 word, {lo, hi};\n"
        "@p ld.relaxed.gpu.global.b128 word, [%4];\n"
        "mov.b128 {lo, hi}, word;\nmov.b64 {%0, %1}, lo;\nmov.b64 {%2, %3}, hi;\n}"
        : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
        : "l"(address), "r"(static_cast<int>(wanted))
        : "memory");
  else
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
        : "l"(address), "r"(static_cast<int>(wanted))
        : "memory");
}

// A word that counts as received and holds zeros.
__device__ __forceinline__ uint4 blank_word(unsigned stamp) {
  return TAGGED ? make_uint4(0, 0, stamp, stamp) : make_uint4(stamp, stamp, stamp, stamp);
}

// Not zero where the word has not arrived.
__device__ __forceinline__ unsigned fault_of(const uint4& word, unsigned stamp) {
  if (TAGGED) return (word.z ^ stamp) | (word.w ^ stamp);
  return (((word.x ^ stamp) | (word.y ^ stamp)) | ((word.z ^ stamp) | (word.w ^ stamp))) & SPARE;
}

// Makes the product of every column NaN. Opaque, or the compiler would weave it into the usual path.
template <int COUNT>
__device__ __forceinline__ void poison(uint4 (&word)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    asm volatile("mov.b32 %0, -1;\nmov.b32 %1, -1;\nmov.b32 %2, -1;\nmov.b32 %3, -1;"
                 : "=r"(word[i].x), "=r"(word[i].y), "=r"(word[i].z), "=r"(word[i].w));
}

struct Nothing {
  __device__ __forceinline__ void operator()() const {}
};

// Waits until all words have arrived, given that each was asked for once. All missing words of a warp are asked for again
// together: asking for one after the other costs a round trip each. `meanwhile` is done with the words before it is known
// whether they have arrived, once a poll. False: given up, and the words are NaN.
template <int COUNT, class Address, class Meanwhile = Nothing>
__device__ __forceinline__ bool await_words(uint4 (&word)[COUNT], unsigned stamp, const Patience& patience,
                                            Address address, Meanwhile meanwhile = {}) {
  unsigned long long since = 0;
  for (int polls = 1;; ++polls) {
    unsigned fault[COUNT], any = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) any |= fault[i] = fault_of(word[i], stamp);
    meanwhile();
    if (!__any_sync(0xffffffffu, any != 0)) return true;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) load_word(word[i], address(i), fault[i] != 0);
    if (patience.ended(polls, since)) {
      poison(word);
      return false;
    }
  }
}

// Takes the spare bits out of received words, where the product cannot be left to do it.
template <int COUNT>
__device__ __forceinline__ void unstamp(uint4 (&word)[COUNT], unsigned stamp) {
#if PRNN_ACTIVATION == PRNN_TANH
  if (TAGGED) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned& bits = (&word[i].x)[j];
      bits ^= stamp;
      bits |= ((bits & BELOW_SPARE) + TO_CARRY) & SPARE;  // carries from a NaN's mantissa, never from 1.0
    }
#endif
}
