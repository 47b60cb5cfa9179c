// A quad of rows of one utterance: what forward and backward cells have in common.
#pragma once
#include "number.cuh"

constexpr int FETCH_AHEAD = 6;  // steps between asking for an argument to come into L2 and its use

struct Column {
  const Launch* launch;
  int row = 0, column = 0, length = 0, steps = 0;
  bool present = false;  // this round has the column, and the block the row

  // `at_column` is the utterance's place in the mini-batch; `group_steps` the number of frames its group works on.
  __device__ __forceinline__ void place(const Launch& of, int at_row, int at_column, bool is_present, int group_steps) {
    launch = &of;
    row = at_row;
    column = at_column;
    steps = group_steps;
    present = is_present;
    length = present ? clamped_length(*launch, column) : 0;
    if (present && length == 0) finish(launch->first == nullptr ? empty_quad() : load_quad(at(launch->first, 0), row));
  }

  __device__ __forceinline__ const Stored* at(const void* tensor, int t) const {
    return static_cast<const Stored*>(tensor) + (static_cast<size_t>(t) * launch->batch + column) * HIDDEN;
  }
  __device__ __forceinline__ Stored* at(void* tensor, int t) const {
    return static_cast<Stored*>(tensor) + (static_cast<size_t>(t) * launch->batch + column) * HIDDEN;
  }
  __device__ __forceinline__ bool reaches(int t, int step) const { return step < steps && t < length; }

  __device__ __forceinline__ void prefetch(const Stored* vector) const {
    if (row < HIDDEN) asm volatile("prefetch.global.L2 [%0];" ::"l"(vector + row));
  }

  // h_n or grad_h_0.
  __device__ __forceinline__ void finish(Quad quad) const { store_quad(at(launch->last, 0), row, quad); }

  // Rows past HIDDEN have zero weights, but zero times infinity is not a number: they must stay zero.
  __device__ __forceinline__ float4 inside(float4 v) const {
    if (!WHOLE_QUADS || INNER_TILES * 16 != HIDDEN) {
      if (row + 0 >= HIDDEN) v.x = 0.0f;
      if (row + 1 >= HIDDEN) v.y = 0.0f;
      if (row + 2 >= HIDDEN) v.z = 0.0f;
      if (row + 3 >= HIDDEN) v.w = 0.0f;
    }
    return v;
  }

  // Frames that the group did not work on, and everything if the launch was given up.
  __device__ __forceinline__ void fill_rest(bool given_up) const {
    if (!present) return;
    const float nan = __uint_as_float(0x7fffffffu);
    const Quad quad = given_up ? narrow(make_float4(nan, nan, nan, nan)) : empty_quad();
#pragma unroll 1
    for (int t = given_up ? 0 : steps; t < launch->steps; ++t) store_quad(at(launch->output, t), row, quad);
    if (given_up) finish(quad);
  }
};
