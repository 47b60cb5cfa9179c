"""Compiles on all cores what the tests of this folder will run: ``python tests/gpu/prepare.py sm_90a``."""

import sys
import time

from prnn_ext import build

GRIDS = (
    ([1, 3, 15, 16, 17, 32, 100, 250, 255, 257, 512, 1152], [4], build.tiles.DTYPES, ["clipped_relu"]),
    ([320], [1, 2, 5, 8, 9, 17, 20, 33, 64, 100], build.tiles.DTYPES, ["clipped_relu"]),
    ([192], [4], build.tiles.DTYPES, ["clipped_relu"]),
    ([144], [6], build.tiles.DTYPES, build.tiles.ACTIVATIONS),
    ([100], [3], ["bfloat16", "float32"], build.tiles.ACTIVATIONS),
    ([2048, 2560], [4], ["bfloat16"], ["clipped_relu"]),
    ([1760, 2560], [4], ["float32"], ["clipped_relu"]),
    ([1152], [6, 64, 256], ["bfloat16"], ["clipped_relu"]),
)

if __name__ == "__main__":
    started = time.perf_counter()
    wanted = {job for grid in GRIDS for job in build.jobs(*grid, sys.argv[1])}
    built = list(build.build(sorted(wanted, key=str)))
    for done in built:
        if done.error or done.spilled_bytes:
            print(done.job, done.error or f"spills {done.spilled_bytes} bytes")
    print(f"{len(built)} kernels in {time.perf_counter() - started:.0f} s, "
          f"{sum(done.spilled_bytes > 0 for done in built)} with spills")  # fmt: skip
