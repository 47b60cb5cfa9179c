// No wait is for ever. A warp that waits longer than the launch's limit gives the launch up: it raises the workspace's
// flag, so that the others leave too, reports in the status word, and the blocks that gave up fill their rows with NaN.
#pragma once
#include "shape.cuh"

constexpr unsigned STATUS_STALLED = 1;
constexpr unsigned STATUS_LENGTH = 2;

__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ void report(unsigned* status, unsigned what) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(status + (what == STATUS_LENGTH)), "r"(what) : "memory");
}

struct Patience {
  static constexpr int LOOK_EVERY = 64;  // failed polls between two looks at clock and flag

  unsigned* flag;
  unsigned* status;
  unsigned long long limit;

  __device__ Patience(const Launch& launch, unsigned* given_up)
      : flag(given_up), status(launch.status), limit(launch.limit) {}

  // Called after the `polls`-th failed poll of one wait; true once the wait must be given up. The same in all lanes.
  __device__ __forceinline__ bool ended(int polls, unsigned long long& since) const {
    if (polls % LOOK_EVERY != 0) return false;
    const unsigned long long now = nanoseconds();
    if (since == 0) since = now;
    unsigned raised;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
    const bool over = raised != 0 || now - since > limit;
    if (!__any_sync(0xffffffffu, over)) return false;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
    report(status, STATUS_STALLED);
    return true;
  }
};
