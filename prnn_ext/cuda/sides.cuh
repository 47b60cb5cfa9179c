// Which of two copies of a word is at home on this multiprocessor's side of L2 (PRNN_SIDES, shape.cuh).
//
// An L2 of two sides answers sooner from the near one. A block publishes every word in two copies, 2^PRNN_SIDES bytes apart,
// which are at home on different sides, and reads each word from the nearer. PRNN_SIDE_MASK: the bits of an address below
// PRNN_SIDES whose parity, with that bit, says on which side a line is at home. A wrong choice, and so a wrong bit, is a slow
// one and nothing else: validity, overwriting and giving up are those of a single copy, twice. The buffers start at a multiple
// of twice the copies' distance, so that adding the distance flips one bit of an address.
#pragma once
#include "exchange.cuh"

#if PRNN_SIDES
// Cycles of an atomic that changes nothing, done where the line is at home; the shortest of a few.
__device__ __forceinline__ unsigned cycles_to(char* line) {
  unsigned best = ~0u;
#pragma unroll 1
  for (int n = 0; n < 6; ++n) {
    unsigned started, ended;
    // The clock is read again once the answer is there: the trap depends on it, and no word of a cleared buffer springs it.
    asm volatile(
        "{\n.reg .pred p;\n.reg .b32 was;\nmov.u32 %0, %%clock;\natom.relaxed.gpu.global.or.b32 was, [%2], 0;\n"
        "setp.eq.u32 p, was, 0xffffffff;\n@p trap;\nmov.u32 %1, %%clock;\n}"
        : "=r"(started), "=r"(ended)
        : "l"(line)
        : "memory");
    best = min(best, ended - started);
  }
  return best;
}
#endif

struct Sides {
  unsigned second = 0;  // bit 2w + b: of buffer b, word w is nearer in the second copy

  // 1 where the second copy of a line whose home's parity is even is the nearer one. For one lane to find out.
  __device__ __forceinline__ static unsigned find(char* buffers, int rank) {
#if PRNN_SIDES
    const int offset = quad_offset(rank * ROW_TILES, 0, 0);  // the block's own, which nobody else writes
    const unsigned second = cycles_to(buffers + offset + APART) < cycles_to(buffers + offset);
    return second ^ parity(reinterpret_cast<size_t>(buffers) + offset);
#else
    return 0;
#endif
  }
  __device__ __forceinline__ static unsigned parity(size_t address) {
    return __popc(static_cast<unsigned>(address) & PRNN_SIDE_MASK) & 1;
  }
  __device__ __forceinline__ void note(int word, int buffer, const char* address, unsigned even) {
    second |= (even ^ parity(reinterpret_cast<size_t>(address))) << (2 * word + buffer);
  }
  // Bytes to add to an address in the first copy.
  __device__ __forceinline__ unsigned of(int word, unsigned buffer) const {
    return PRNN_SIDES ? ((second >> (2 * word + buffer)) & 1) << PRNN_SIDES : 0;
  }
};
