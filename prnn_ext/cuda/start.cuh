// Where an utterance's recurrence starts. h_0 is an argument, so that every block reads it itself instead of waiting for
// it to be published. Backwards in time a short utterance starts late: at its last frame, `steps - length` steps in.
#pragma once
#include "number.cuh"

struct Start {
  const Launch& launch;
  int first_column, columns, steps;
  int last;  // last step at which some column of the group starts
  int step = 0;

  __device__ __forceinline__ Start(const Launch& launch, int first_column, int columns, int steps)
      : launch(launch), first_column(first_column), columns(columns), steps(steps), last(0) {
    if (!PRNN_BACKWARD && launch.reverse)
#pragma unroll 1
      for (int c = 0; c < columns; ++c) last = max(last, steps - clamped_length(launch, first_column + c));
  }

  __device__ __forceinline__ bool applies() const { return step <= last; }
  __device__ __forceinline__ bool applies_to(int column) const {
    // Nothing comes before the first delta: the backward pass starts from zeros.
    if (PRNN_BACKWARD || column >= columns) return false;
    return step == 0 || step <= steps - clamped_length(launch, first_column + column);
  }
  __device__ __forceinline__ Quad quad(int column, int row) const {
    if (launch.first == nullptr) return empty_quad();
    return load_quad(static_cast<const Stored*>(launch.first) + static_cast<size_t>(first_column + column) * HIDDEN, row);
  }
};
