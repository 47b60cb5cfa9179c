"""`python -m experiments memory`: what a training step needs, by depth, mini-batch, width and policy.

Effect 2 of the study: activation memory grows with the per-GPU mini-batch, so a network that is efficient at 4 may be
many times deeper. Each point is one whole training step on noise, run with the project's layers under each policy and,
in the same process, with ordinary ones (Linear, BatchNorm1d, torch.nn.RNN); beside what was measured stands what was
predicted before.

On CUDA the peak is the allocator's, activation memory the peak over forward and backward less all that lives anyway
(parameters, gradients, optimiser state, inputs). On a CPU both are accounted: parameters + gradients + optimiser state
+ what is kept for backward. `--traced` runs nothing: every figure is then a prediction, of a GPU of any size.
"""

import argparse
import itertools
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from experiments.devices import device_of
from experiments.memory.grid import POLICIES, PRECISIONS, add_size_arguments, networks
from experiments.option_lists import counts, integers, names

FIT_POLICIES: tuple[Any, ...] = ("save", "recompute")
GIB = 2**30
# The size at which "what fits" is answered where no other is given: the paper's deepest network, 7 s of speech.
FIT_LAYERS, FIT_HIDDEN_SIZE, FIT_BATCH_SIZE, FIT_FRAMES = 88, 1152, 4, 350


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_size_arguments(parser)
    parser.add_argument("--hidden-sizes", type=integers, help="comma-separated units (default: 1152; on a CPU 64)")
    parser.add_argument("--policies", type=names(POLICIES), help="default: save,recompute; on CUDA offload too")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: bf16-mixed; on a CPU 32")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--skip-span", type=skip_span, default=4, help="layers a skip spans, 0 for none (default: 4)")
    parser.add_argument("--traced", action="store_true", help="predict the sizes of a GPU's grid, run nothing")
    parser.add_argument("--gpu-memory-gib", type=integers, default=[24, 80, 141], help="GPUs for `what fits`")
    parser.add_argument("--output", type=Path, default=Path("runs/memory"), help="folder of the results")


def skip_span(text: str) -> int | None:
    """A number of layers; 0 is None."""
    return counts(text)[0] or None


def run(options: argparse.Namespace) -> int:
    """Measure the grid, print what fits, write memory.json, table.csv and report.html."""
    import torch
    from rich.console import Console

    from experiments.memory.fit import DoesNotFitError, check_fits
    from experiments.memory.report import print_table, write_results
    from experiments.memory.rows import available_bytes, measure, row, traced

    device = device_of(options.device)
    # cuDNN would otherwise answer a float32 question in tf32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    console, rows, refused = Console(stderr=True), [], []
    available = available_bytes(device)
    gpu = device.type == "cuda" or options.traced
    for network in networks(
        gpu,
        options.depths,
        options.hidden_sizes,
        options.batch_sizes,
        options.frames,
        [options.precision or ("bf16-mixed" if gpu else "32")],
        options.optimizer,
        skip_span=options.skip_span,
    ):
        console.log(f"{network.stack.num_layers} layers x {network.stack.hidden_size}, batch {network.batch_size}")
        # torch.nn.RNN off a GPU is an operator a time step: another thing to trace than cuDNN's.
        ordinary, compared = None, not (options.no_baseline or options.traced)
        for policy in options.policies or (POLICIES if device.type == "cuda" and not options.traced else FIT_POLICIES):
            step = replace(network, stack=replace(network.stack, memory_policy=policy))
            try:
                check_fits(step, 2**60 if options.traced else available, device.type)
            except DoesNotFitError as error:
                refused.append(str(error))
                continue
            if ordinary is None and compared:
                try:
                    ordinary = measure(network, device, ordinary=True)
                except torch.OutOfMemoryError as error:
                    refused.append(f"Ordinary layers, {network.stack.num_layers} x {network.batch_size}: {error}")
                    compared = False
            source = "predicted" if options.traced else "measured" if device.type == "cuda" else "accounted"
            own = traced(step) if options.traced else measure(step, device)
            rows.append(asdict(row(step, device, own, ordinary, source)))
    fits = what_fits(options)
    if not rows:
        print(f"error: nothing of the grid fits: {' '.join(refused)}", file=sys.stderr)
        return 2
    write_results(options.output, rows, fits, refused, device)
    print_table(rows, fits, refused)
    print(f"wrote {options.output / 'report.html'}")
    return 0


def what_fits(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Predicted: the deepest network at the smallest mini-batch given, and the largest mini-batch at the greatest depth
    given, by width, GPU memory and policy; what is not given is the paper's deepest network. `deeper_not_tried`,
    `larger_not_tried`: where the search ended before the memory did."""
    from experiments.memory.bare_step import StepOptions
    from experiments.memory.fit import MOST_LAYERS, MOST_UTTERANCES, Fit
    from models.stack import StackOptions

    precision: Any = options.precision or "bf16-mixed"
    layers, batch = max(options.depths or [FIT_LAYERS]), min(options.batch_sizes or [FIT_BATCH_SIZE])
    frames = options.frames or FIT_FRAMES
    rows = []
    for width in options.hidden_sizes or [FIT_HIDDEN_SIZE]:
        stack = StackOptions(layers, width, skip_span=options.skip_span, activation="relu")
        fit = Fit(StepOptions(stack, batch, frames, precision, options.optimizer))
        for gib, policy in itertools.product(options.gpu_memory_gib, options.policies or FIT_POLICIES):
            depth, utterances = (
                fit.largest_depth(gib * GIB, batch, policy),
                fit.largest_batch(gib * GIB, layers, policy),
            )
            rows.append(
                {
                    "gpu_memory_gib": gib,
                    "policy": policy,
                    "precision": precision,
                    "hidden_size": width,
                    "frames": frames,
                    "largest_depth": depth,
                    "deeper_not_tried": depth > MOST_LAYERS - stack.module_layers,
                    "at_batch_size": batch,
                    "largest_batch_size": utterances,
                    "larger_not_tried": utterances >= MOST_UTTERANCES,
                    "at_num_layers": layers,
                }
            )
    return rows
