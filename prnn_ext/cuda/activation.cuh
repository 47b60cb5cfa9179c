// The cell: f and its slope, read back from h = f(z). NaN and infinity pass through as in PyTorch.
#pragma once
#include "number.cuh"

#define PRNN_RELU 0
#define PRNN_CLIPPED_RELU 1
#define PRNN_TANH 2

constexpr float CLIP = 20.0f;

__device__ __forceinline__ float activate(float z) {
#if PRNN_ACTIVATION == PRNN_TANH && PRNN_DTYPE == PRNN_FLOAT32
  return tanhf(z);
#elif PRNN_ACTIVATION == PRNN_TANH
  // 1 - 2 / (exp(2z) + 1): off by about 1e-7, far below what 16 bits store.
  float power, inverse;
  asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(z * 2.8853900817779268f));
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
  return fmaf(-2.0f, inverse, 1.0f);
#else
  float h;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(h) : "f"(z), "f"(0.0f));
#if PRNN_ACTIVATION == PRNN_CLIPPED_RELU
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(h) : "f"(CLIP));
#endif
  return h;
#endif
}

// grad * f'(h), with PyTorch's habit of cutting rather than multiplying by zero, so that 0 * infinity is 0.
__device__ __forceinline__ float through_activation(float grad, float h) {
#if PRNN_ACTIVATION == PRNN_TANH
  return grad * (1.0f - h * h);
#elif PRNN_ACTIVATION == PRNN_CLIPPED_RELU
  return h <= 0.0f || h >= CLIP ? 0.0f : grad;
#else
  return h <= 0.0f ? 0.0f : grad;
#endif
}
