"""Where the host's time goes in a training step of the deep stack: Python's own profile of 8 layers, backward included.

    PYTHONPATH=. python tests/gpu/host_profile.py

The profiler slows what it counts, small functions most: shares tell, not sums.
"""

import cProfile
import pstats
import time

import torch

from experiments.memory.bare_step import StepOptions
from experiments.whole_step.stack_step import StackStep
from models.stack import StackOptions

GPU = torch.cuda.is_available()
LAYERS, STEPS = 8, 20 if GPU else 2


def main() -> None:
    """The step as it is, then profiled."""
    stack = StackOptions(LAYERS, 1152 if GPU else 64, activation="relu")
    step = StackStep(StepOptions(stack, 4, 350 if GPU else 5, "bf16-true"), torch.device("cuda" if GPU else "cpu"))

    def run() -> None:
        for _ in range(STEPS):
            step.fresh()

    # Backward would run in a thread of its own, which the profiler does not see.
    with torch.autograd.set_multithreading_enabled(False):
        run()
        wait()
        began = time.perf_counter()
        run()
        host = time.perf_counter() - began
        wait()
        print(f"{1e6 * host / STEPS / LAYERS:.0f} us of host time a layer, forward and backward, not profiled")
        profile = cProfile.Profile()
        profile.runcall(run)
        wait()
    # Below the rate at which the GPU works, launches wait for it: the host's own time is then less than this.
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(40)


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
