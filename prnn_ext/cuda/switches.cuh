// Ways of doing one thing that wait for a GPU to time them; 0 is what is used. `tests/gpu/kernel_bench.py variants` times
// them beside each other, each checked against float64 first. What wins becomes the only way, what loses goes.
// Predictions are in cycles of one step at 1152 x 4 in 16 bits (about 1,700), from the disassembly for sm_90a.
#pragma once

// Multiplies before the words are known to have arrived, and looks at them meanwhile: OR tree, vote and branches (about 50)
// hide behind the matrix instructions; a failed poll throws the sums away. The sums that count are of words that are all
// valid, added in the same order, so not a bit changes. Where one chunk is all and f leaves the words as the product
// wants them (not after tanh).
#ifndef PRNN_EAGER
#define PRNN_EAGER 0
#endif

// Independent accumulators of a single output tile instead of 2: with 3, two matrix instructions wait for each other in
// turn instead of three (about 20); a third sum to add.
#ifndef PRNN_CHAINS
#define PRNN_CHAINS 0
#endif

// Prepares a step's addresses, stamp and sign at the end of the step before, and keeps the addresses of partial sums in
// registers that change places. Otherwise ptxas computes them after the last matrix instruction (about 20) and between
// the barrier and the first load (about 30), whatever the source's order. What is prepared comes after the publishing store that others wait for, as it did.
#ifndef PRNN_ROTATED
#define PRNN_ROTATED 0
#endif

// Cell lanes without an utterance read no partial sums: at 4 columns of 8, half of the shared memory's 48 cycles.
#ifndef PRNN_SPARING
#define PRNN_SPARING 0
#endif

// Two copies of the buffers, 2^PRNN_SIDES bytes apart, for an L2 of two sides: a block publishes into both and reads each
// word from the copy at home on its own side (sides.cuh). PRNN_SIDE_MASK: the bits of an address below PRNN_SIDES whose
// parity says on which side a line is at home. Both come from `tests/gpu/l2_probe.py`; wrong ones cost time, not results.
// The workspace must hold 4 * 2^PRNN_SIDES bytes (PRNN_WORKSPACE_BYTES). Forecast: what the probe's trips differ by.
#ifndef PRNN_SIDES
#define PRNN_SIDES 0
#define PRNN_SIDE_MASK 0
#endif

// Lengths are read by many lanes at once, not one after the other: a launch's start, about 600 cycles an utterance.
#ifndef PRNN_LENGTHS
#define PRNN_LENGTHS 0
#endif
