"""How far apart a GPU's multiprocessors and its L2 are: what a step of the exchange cannot go below.

    PYTHONPATH=. python tests/gpu/l2_probe.py

1. The time of one load and of one atomic, for each multiprocessor and each of 4,096 lines of 128 bytes. A load may be
   answered by a copy on the multiprocessor's own side of L2; an atomic is done where the line is at home. Has L2 two
   sides, near and far? If so: who is on which, and which bits of an address decide where a line is at home (a mask
   whose parity is the side: then a second copy of a buffer, one such bit away, is at home on the other side).
2. There and back between two multiprocessors through one line each way, polled as the kernel polls: half of it is the
   shortest trip of a hidden state, by the sides of reader, writer and line. If the best sides beat the mean by more
   than a hundred cycles, publishing two copies, one at home on each side, and reading the near one is worth a trial.

Cycles are those of the multiprocessors. Every wait ends after 20,000 polls.
"""

import itertools
import json
import os
import statistics
from pathlib import Path

import torch

from prnn_ext import build, compiler, driver

LINES, TRIES, TURNS = 4096, 12, 200
ALONE = 120 * 1024  # bytes of shared memory of which a multiprocessor has no two
SOURCE = r"""
__device__ __forceinline__ unsigned ask(const unsigned* line) {
  unsigned value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(line) : "memory");
  return value;
}
// Goes on once the value is there: a trap that depends on it, and never springs, since all memory is zero.
__device__ __forceinline__ unsigned clock_after(unsigned value) {
  unsigned now;
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0xffffffff;\n@p trap;\nmov.u32 %0, %%clock;\n}"
               : "=r"(now) : "r"(value) : "memory");
  return now;
}
__device__ __forceinline__ unsigned multiprocessor() {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
__device__ __forceinline__ unsigned add_nothing(unsigned* line) {
  unsigned value;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 0;" : "=r"(value) : "l"(line) : "memory");
  return value;
}
// One thread a multiprocessor: the shortest of `tries` loads, or atomics, of each line.
extern "C" __global__ void answers(unsigned* memory, unsigned* cycles, int lines, int tries, int atomics) {
  if (threadIdx.x != 0) return;
  unsigned* row = cycles + multiprocessor() * lines;
  for (int i = 0; i < lines; ++i) {
    unsigned best = ~0u;
    for (int n = 0; n < tries; ++n) {
      const unsigned started = clock_after(0);
      best = min(best, clock_after(atomics ? add_nothing(memory + 32 * i) : ask(memory + 32 * i)) - started);
    }
    row[i] = best;
  }
}
// Multiprocessors `first` and `second` answer each other `turns` times; the others leave.
extern "C" __global__ void trips(unsigned* there, unsigned* back, unsigned* cycles, int first, int second, int turns) {
  const int here = multiprocessor();
  if (threadIdx.x != 0 || (here != first && here != second)) return;
  unsigned* mine = here == first ? there : back;
  const unsigned* other = here == first ? back : there;
  const unsigned started = clock();
  for (unsigned n = 1; n <= turns; ++n) {
    if (here == first) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(mine), "r"(n) : "memory");
    int polls = 0;
    while (ask(other) != n && ++polls < 20000) {
    }
    if (here == second) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(mine), "r"(n) : "memory");
  }
  if (here == first) *cycles = (static_cast<unsigned>(clock()) - started) / turns;
}
"""


def kernels():
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    image = compiler.compile_text("probe.cu", {"probe.cu": SOURCE}, {}, arch).image
    return driver.load_kernel(image, "answers", "PPiii", 0), driver.load_kernel(image, "trips", "PPPiii", 0)


def sides(cycles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Signs of multiprocessors and lines by the first singular vector of what row and column means leave, and its share
    of that variance: near 1 where two sides are all there is to tell, near 0 where there are none."""
    rest = cycles - cycles.mean(0) - cycles.mean(1, keepdim=True) + cycles.mean()
    left, values, right = torch.linalg.svd(rest, full_matrices=False)
    return left[:, 0] > 0, right[0] > 0, (values[0] ** 2 / (values**2).sum()).item()


def runs_of(signs: torch.Tensor) -> list[int]:
    """Lengths of stretches of equal signs."""
    ends = (signs[1:] != signs[:-1]).nonzero().flatten() + 1
    return torch.diff(torch.cat([torch.tensor([0]), ends, torch.tensor([len(signs)])])).tolist()


def deciding_bits(signs: torch.Tensor) -> tuple[list[int], float]:
    """Bits of a line's number whose change turns its side over (in at least three lines of four), and the share of
    lines whose side is the parity of those bits, up to a sign: 1 where the mask is all there is to it."""
    numbers = torch.arange(len(signs))
    bits = [
        bit for bit in range(len(signs).bit_length() - 1) if (signs != signs[numbers ^ 1 << bit]).double().mean() > 0.75
    ]
    parity = sum(((numbers >> bit) & 1 for bit in bits), torch.zeros_like(numbers)) % 2 == 1
    agreeing = (parity == signs).double().mean().item()
    return bits, max(agreeing, 1 - agreeing)


def answered(launch, memory: torch.Tensor, count: int, atomics: bool) -> tuple[dict, torch.Tensor, torch.Tensor]:
    """What one kind of access says; sides of multiprocessors and lines."""
    cycles = torch.zeros(count, LINES, dtype=torch.int32, device="cuda")
    for _ in range(2):
        launch(driver.current_stream(0), (memory.data_ptr(), cycles.data_ptr(), LINES, TRIES, int(atomics)))
    found = cycles.cpu().double()
    assert (found > 0).all(), "a multiprocessor was left out"
    here, there, share = sides(found)
    equal, unequal = (found[(here[:, None] == there) == same].mean().item() for same in (True, False))
    quantiles = torch.quantile(found.flatten()[::7], torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99]).double())
    bits, agreeing = deciding_bits(there)
    result = {
        "cycles_1_10_50_90_99_percent": quantiles.tolist(),
        "share_of_two_sides": round(share, 3),
        "near_cycles": min(equal, unequal),
        "far_cycles": max(equal, unequal),
        "multiprocessors_on_one_side": int(here.sum()),
        "lines_on_one_side": int(there.sum()),
        "stretch_of_lines_median": statistics.median(runs_of(there)),
        "deciding_address_bits": [bit + 7 for bit in bits],
        "lines_that_they_explain": round(agreeing, 3),
    }
    return result, here, there


def main() -> None:
    properties = torch.cuda.get_device_properties(0)
    count = properties.multi_processor_count
    twice = torch.zeros(2 * LINES * 32, dtype=torch.int32, device="cuda")
    begin = -twice.data_ptr() % (LINES * 128) // 4  # where a line's number is bits of its address
    memory = twice[begin : begin + LINES * 32]
    answers, trips = kernels()
    launch = answers.prepare((count, 1, 1), (32, 1, 1), ALONE)
    result: dict = {"device": properties.name, "trips": []}
    for name, atomics in (("loads", False), ("atomics", True)):
        result[name], here, there = answered(launch, memory, count, atomics)
        print(name, *(f"    {key}: {value}" for key, value in result[name].items()), sep="\n", flush=True)
    ids = {side: (here == side).nonzero().flatten().tolist() for side in (True, False)}
    rows = {side: (there == side).nonzero().flatten().tolist() for side in (True, False)}
    launch = trips.prepare((count, 1, 1), (32, 1, 1), ALONE)
    answer = torch.zeros(1, dtype=torch.int32, device="cuda")
    if min(map(len, (*ids.values(), *rows.values()))) < 32:
        print("no two sides: no trips")
        ids = {}
    for first, second, forth, back in itertools.product(ids, ids, rows, rows):
        times = []
        for n in range(8):
            memory.zero_()
            pair = ids[first][n % len(ids[first])], ids[second][-1 - n % len(ids[second])]
            lines = (
                memory.data_ptr() + 128 * rows[side][(17 * n + k) % len(rows[side])]
                for k, side in enumerate((forth, back))
            )
            launch(driver.current_stream(0), (*lines, answer.data_ptr(), *pair, TURNS))
            times.append(answer.item() / 2)
        row = {
            "writer": first,
            "reader": second,
            "line_there": forth,
            "line_back": back,
            "cycles_one_way": statistics.median(times),
        }
        result["trips"].append(row)
        print(row, flush=True)
    if path := os.environ.get("PRNN_RESULT"):
        Path(path).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        for arch in build.GPUS:
            print(arch, compiler.compile_text("probe.cu", {"probe.cu": SOURCE}, {}, arch).resources)
