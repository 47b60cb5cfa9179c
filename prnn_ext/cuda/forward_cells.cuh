// Forward: h = f(scale * x_t + shift + U h_prev), one quad a lane and output tile.
#pragma once
#include "activation.cuh"
#include "column.cuh"

struct Cell : Column {
  static constexpr int STEPS_AFTER = 0;  // products needed after the last frame
  float4 scale, shift;
  Quad coming = empty_quad();  // x of the next step

  __device__ __forceinline__ void begin(const Launch& of, int at_row, int at_column, bool is_present, int group_steps) {
    place(of, at_row, at_column, is_present, group_steps);
    scale = load_floats(launch->scale, row, 1.0f);
    shift = load_floats(launch->shift, row, 0.0f);
    fetch(0);
  }

  __device__ __forceinline__ int frame(int step) const { return launch->reverse ? steps - 1 - step : step; }

  __device__ __forceinline__ void fetch(int step) {
    if (reaches(frame(step), step)) coming = load_quad(at(launch->input, frame(step)), row);
    if (reaches(frame(step + FETCH_AHEAD), step + FETCH_AHEAD)) prefetch(at(launch->input, frame(step + FETCH_AHEAD)));
  }

  // What `step` needs beside the product, made ready before the product is.
  struct Term {
    float4 z;
    bool active;
  };
  __device__ __forceinline__ Term take(int step) {
    const float4 x = widen(coming);
    Term term{make_float4(fmaf(scale.x, x.x, shift.x), fmaf(scale.y, x.y, shift.y), fmaf(scale.z, x.z, shift.z),
                          fmaf(scale.w, x.w, shift.w)),
              reaches(frame(step), step)};
    asm volatile("" : "+f"(term.z.x), "+f"(term.z.y), "+f"(term.z.z), "+f"(term.z.w));
    fetch(step + 1);
    return term;
  }

  // h, given `sign` times U h_prev.
  __device__ __forceinline__ Quad advance(const Term& term, float4 product, float sign) const {
    return narrow(inside(make_float4(activate(fmaf(sign, product.x, term.z.x)), activate(fmaf(sign, product.y, term.z.y)),
                                     activate(fmaf(sign, product.z, term.z.z)),
                                     activate(fmaf(sign, product.w, term.z.w)))));
  }

  __device__ __forceinline__ void store(int step, const Term& term, Quad h, float4) const {
    if (!present) return;
    const int t = frame(step);
    store_quad(at(launch->output, t), row, term.active ? h : empty_quad());
    if (term.active && t == (launch->reverse ? 0 : length - 1)) finish(h);
  }
};
