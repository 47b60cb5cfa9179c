// Backward: delta_t = f'(h_t) (grad_output_t + [grad_h_n at the utterance's last step] + U^T delta_next), one quad a lane
// and output tile; f' is read from h_t. The product after an utterance's first frame is grad_h_0.
#pragma once
#include "activation.cuh"
#include "column.cuh"

struct Cell : Column {
  static constexpr int STEPS_AFTER = 1;  // products needed after the last frame: grad_h_0
  Quad coming_grad = empty_quad(), coming_h = empty_quad();  // of the next step

  __device__ __forceinline__ void begin(const Launch& of, int at_row, int at_column, bool is_present, int group_steps) {
    place(of, at_row, at_column, is_present, group_steps);
    fetch(0);
  }

  __device__ __forceinline__ int frame(int step) const { return launch->reverse ? step : steps - 1 - step; }

  __device__ __forceinline__ void fetch(int step) {
    if (reaches(frame(step), step)) {
      coming_grad = load_quad(at(launch->input, frame(step)), row);
      coming_h = load_quad(at(launch->hidden, frame(step)), row);
    }
    if (reaches(frame(step + FETCH_AHEAD), step + FETCH_AHEAD)) {
      prefetch(at(launch->input, frame(step + FETCH_AHEAD)));
      prefetch(at(launch->hidden, frame(step + FETCH_AHEAD)));
    }
  }

  // What `step` needs beside the product, made ready before the product is.
  struct Term {
    float4 grad, h;
    bool active;
  };
  __device__ __forceinline__ Term take(int step) {
    const int t = frame(step);
    Term term{widen(coming_grad), widen(coming_h), reaches(t, step)};
    if (launch->first != nullptr && term.active && t == (launch->reverse ? 0 : length - 1)) {
      const float4 entering = widen(load_quad(at(launch->first, 0), row));
      term.grad.x += entering.x;
      term.grad.y += entering.y;
      term.grad.z += entering.z;
      term.grad.w += entering.w;
    }
    asm volatile("" : "+f"(term.grad.x), "+f"(term.grad.y), "+f"(term.grad.z), "+f"(term.grad.w));
    fetch(step + 1);
    return term;
  }

  // delta, given `sign` times U^T delta_next.
  __device__ __forceinline__ Quad advance(const Term& term, float4 product, float sign) const {
    return narrow(inside(make_float4(through_activation(fmaf(sign, product.x, term.grad.x), term.h.x),
                                     through_activation(fmaf(sign, product.y, term.grad.y), term.h.y),
                                     through_activation(fmaf(sign, product.z, term.grad.z), term.h.z),
                                     through_activation(fmaf(sign, product.w, term.grad.w), term.h.w))));
  }

  __device__ __forceinline__ void store(int step, const Term& term, Quad delta, float4 product) const {
    if (!present) return;
    if (step < steps) store_quad(at(launch->output, frame(step)), row, term.active ? delta : empty_quad());
    if (length > 0 && step == (launch->reverse ? length : steps)) finish(narrow(product));
  }
};
