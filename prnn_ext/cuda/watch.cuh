// Where a step's cycles go, for `tests/gpu/trace.py`: with PRNN_TRACE, each warp of each block notes the clock of its
// multiprocessor at the joints of a step, PRNN_TRACE_FROM bytes into the workspace: [block][warp][step][4]. Product warps: asked
// for the first words, had all, left the sums; the number of polls. Cell warps: passed the barrier, published. Otherwise
// nothing is noted and nothing is compiled.
#pragma once
#include "exchange.cuh"

struct Watch {
#ifdef PRNN_TRACE
  uint4 noted = make_uint4(0, 0, 0, 0);

  __device__ __forceinline__ static unsigned now() {
    unsigned cycles;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
    return cycles;
  }
  __device__ __forceinline__ void first() { noted.x = now(); }
  __device__ __forceinline__ void second() { noted.y = now(); }
  __device__ __forceinline__ void third() { noted.z = now(); }
  __device__ __forceinline__ void polled() { ++noted.w; }
  __device__ __forceinline__ void keep(const Launch& launch, unsigned step) {
    const int warp = threadIdx.x / 32;
    uint4* notes = reinterpret_cast<uint4*>(launch.workspace + PRNN_TRACE_FROM);
    if (threadIdx.x % 32 == 0 && step < PRNN_TRACE)
      notes[(static_cast<size_t>(blockIdx.x) * (THREADS / 32) + warp) * PRNN_TRACE + step] = noted;
    noted = make_uint4(0, 0, 0, 0);
  }
#else
  __device__ __forceinline__ void first() {}
  __device__ __forceinline__ void second() {}
  __device__ __forceinline__ void third() {}
  __device__ __forceinline__ void polled() {}
  __device__ __forceinline__ void keep(const Launch&, unsigned) {}
#endif
};
