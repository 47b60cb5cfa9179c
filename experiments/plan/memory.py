"""Memory of one training step for the planner: a traced step of the paper's network at the longest utterance.

The front-end is the paper's (32 channels on a log spectrogram), batch norm local, skip span 4. The step is traced at
full depth and one mini-batch (`memory_prediction.predict`), so its bytes are counted. Parameters, gradients and
optimiser state do not depend on the mini-batch and all else is proportional to it.
"""

import argparse
from collections.abc import Callable

from experiments.plan.facts import Fact

TOKENS = 29
CHANNELS = 32
SPECTROGRAM_BINS = 161
PRECISIONS = {"bf16": "bf16-mixed", "fp32": "32"}
GIB = 2**30
TRACED_BATCH = 8


def memory_of(options: argparse.Namespace) -> tuple[Callable[[int], int], int, list[Fact]]:
    """(peak bytes by per-GPU batch, parameters, sources). Raises ValueError for shapes that no network has."""
    from experiments.memory.bare_step import StepOptions
    from experiments.memory.prediction import WORKSPACE, predict
    from models.stack import StackOptions

    frames = round(options.longest_seconds * 1000 / options.frame_ms)
    step = StepOptions(
        stack=StackOptions(options.num_layers, options.hidden_size, memory_policy=options.policy),
        batch_size=TRACED_BATCH,
        frames=frames,
        precision=PRECISIONS[options.precision],  # type: ignore[arg-type]
        optimizer=options.optimizer,
    )
    traced = predict(step)
    lasting = traced.parameters + traced.gradients + traced.optimizer

    def memory(batch_size: int) -> int:
        return round(WORKSPACE + lasting + (traced.peak - lasting) * batch_size / TRACED_BATCH)

    parameters = parameter_count(options.num_layers, options.hidden_size)
    source = f"a traced step ({options.policy}, {PRECISIONS[options.precision]}, {options.optimizer}, {frames} frames)"
    facts = [
        Fact("parameters", parameters, "", "given", "counted from the network's shapes"),
        Fact("weights, gradients, optimiser", lasting / GIB, "GiB", "predicted", source),
        Fact("memory of one more utterance", (memory(2) - memory(1)) / GIB, "GiB", "predicted", source),
        Fact("workspace of CUDA's libraries", WORKSPACE / GIB, "GiB", "assumption", "experiments/memory/prediction.py"),
    ]
    return memory, parameters, facts


def bins_after(bins: int) -> int:
    """Frequency bins after one convolution of stride 2."""
    return (bins - 1) // 2 + 1


def parameter_count(num_layers: int, hidden_size: int, module_layers: int = 4, future_frames: int = 40) -> int:
    """Parameters of the paper's network: front-end of 32 channels on a log spectrogram, row convolutions a module."""
    H = hidden_size
    front_end = CHANNELS * 41 * 11 + CHANNELS * CHANNELS * 21 * 11 + 4 * CHANNELS
    inputs = CHANNELS * bins_after(bins_after(SPECTROGRAM_BINS))
    layers = inputs * H + (num_layers - 1) * H * H + num_layers * (H * H + 2 * H)
    modules = num_layers // module_layers
    row_convolutions = H * (future_frames + modules) if modules else 0
    head = 2 * H + H * TOKENS + TOKENS
    return front_end + layers + row_convolutions + head
