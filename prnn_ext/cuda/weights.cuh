// The recurrent matrix as the product wants it. Forward, a block multiplies rows of U; backward, rows of U^T.
#pragma once
#include "number.cuh"

// Numbers (row, inner .. inner + 3) of U or, backward, of U^T; zero outside the matrix.
__device__ __forceinline__ Quad weight_quad(const Stored* weight, int row, int inner) {
  if (row >= HIDDEN) return empty_quad();
  if (!PRNN_BACKWARD) return load_quad(weight + static_cast<size_t>(row) * HIDDEN, inner);
  QuadParts parts;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (inner + i < HIDDEN) parts.part[i] = weight[static_cast<size_t>(inner + i) * HIDDEN + row];
  return parts.quad;
}

// The shared memory of a block: weights that found no room in registers, then the partial sums of two steps.
constexpr int PARTIAL_FLOATS = 128;  // of one 16x8 output tile
constexpr int PARTIALS_BYTES = 2 * PRODUCT_WARPS * OUTPUT_TILES * PARTIAL_FLOATS * 4;
