// Stored numbers: bfloat16, float16 or float32, four at a time. Arithmetic is float32 throughout.
// Conversions are inline PTX because NVRTC comes without CUDA's headers.
#pragma once
#include "shape.cuh"

#if PRNN_DTYPE == PRNN_FLOAT32
typedef float Stored;
typedef uint4 Quad;
__device__ __forceinline__ Quad empty_quad() { return make_uint4(0, 0, 0, 0); }
#else
typedef unsigned short Stored;
typedef uint2 Quad;
__device__ __forceinline__ Quad empty_quad() { return make_uint2(0, 0); }
#endif

constexpr int QUAD_BYTES = sizeof(Quad);

#if PRNN_DTYPE == PRNN_FLOAT32
__device__ __forceinline__ float4 widen(Quad q) {
  return make_float4(__uint_as_float(q.x), __uint_as_float(q.y), __uint_as_float(q.z), __uint_as_float(q.w));
}
__device__ __forceinline__ Quad narrow(float4 v) {
  return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
}
#elif PRNN_DTYPE == PRNN_BFLOAT16
__device__ __forceinline__ float4 widen(Quad q) {
  return make_float4(__uint_as_float(q.x << 16), __uint_as_float(q.x & 0xffff0000u), __uint_as_float(q.y << 16),
                     __uint_as_float(q.y & 0xffff0000u));
}
__device__ __forceinline__ Quad narrow(float4 v) {
  Quad q;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(q.x) : "f"(v.y), "f"(v.x));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(q.y) : "f"(v.w), "f"(v.z));
  return q;
}
#else
__device__ __forceinline__ float2 widen_pair(unsigned pair) {
  float2 v;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
      : "=f"(v.x), "=f"(v.y)
      : "r"(pair));
  return v;
}
__device__ __forceinline__ float4 widen(Quad q) {
  const float2 a = widen_pair(q.x), b = widen_pair(q.y);
  return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ Quad narrow(float4 v) {
  Quad q;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(q.x) : "f"(v.y), "f"(v.x));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(q.y) : "f"(v.w), "f"(v.z));
  return q;
}
#endif

// Rows row..row+3 (row a multiple of 4) of a vector of HIDDEN numbers; rows past its end read as zero and are not
// written. Vectors are 16-byte aligned at their tensor's start, so a quad is one access where 4 divides HIDDEN.
constexpr bool WHOLE_QUADS = HIDDEN % 4 == 0;

union QuadParts {
  Quad quad;
  Stored part[4];
  __device__ QuadParts() : quad(empty_quad()) {}
};

__device__ __forceinline__ Quad load_quad(const Stored* vector, int row) {
  if (WHOLE_QUADS) return row < HIDDEN ? *reinterpret_cast<const Quad*>(vector + row) : empty_quad();
  QuadParts parts;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i < HIDDEN) parts.part[i] = vector[row + i];
  return parts.quad;
}

__device__ __forceinline__ void store_quad(Stored* vector, int row, Quad quad) {
  if (WHOLE_QUADS) {
    if (row < HIDDEN) *reinterpret_cast<Quad*>(vector + row) = quad;
    return;
  }
  QuadParts parts;
  parts.quad = quad;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i < HIDDEN) vector[row + i] = parts.part[i];
}

__device__ __forceinline__ float4 load_floats(const float* vector, int row, float otherwise) {
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = vector != nullptr && row + i < HIDDEN ? vector[row + i] : otherwise;
  return make_float4(v[0], v[1], v[2], v[3]);
}
