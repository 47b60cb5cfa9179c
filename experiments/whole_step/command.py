"""`python -m experiments whole-step`: a whole training step, with this project's layers and with ordinary ones.

Effects 1 and 2 on everything that a step consists of, not on the kernel alone. Two networks that differ in their
recurrent layers only take turns in one process: ours, and Linear + BatchNorm1d + torch.nn.RNN (cuDNN's on a GPU). Timed
are forward and backward of the recurrent stack, for a gradient at its output, and the step from audio to optimiser.

* `ordinary_less_matrix_ms` takes out what torch.nn.RNN's own input matrix costs (one product forward, two backward a
  layer, timed in the same run), since nobody asked for it.
* `*_graph_ms`: the same launches replayed as CUDA graphs, that is without host time.
* activation memory: peak over forward and backward less all that was alive before.
* parts: time of the GPU's kernels in one profiled step, by what they do; on a CPU of PyTorch's operators.
* roofline: the recurrence of all layers timed alone + the FLOPs of the stack's products at the speed of one large
  product.

`--deep 1000` also trains a network of that depth for `--deep-steps`. Where rows are those that the study has to reach,
a table says required, measured, met.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from experiments.card import add_card_argument, count, positive, settled
from experiments.devices import device_of
from experiments.memory.grid import POLICIES, PRECISIONS, add_size_arguments, networks
from experiments.option_lists import names

DEFAULTS: dict[str, Any] = {
    "depths": None,
    "hidden_size": None,
    "batch_sizes": None,
    "frames": None,
    "precisions": None,
    "policies": ["save"],
    "row_convolution": "per_module",
    "no_baseline": False,
    "rounds": 3,
    "deep": None,
    "deep_steps": 100,
    "deep_learning_rate": 2e-4,
    "device": None,
    "output": Path("runs/whole_step"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_card_argument(parser)
    add_size_arguments(parser)
    parser.add_argument("--hidden-size", type=count, help="default: 1152; on a CPU 64")
    parser.add_argument("--precisions", type=names(PRECISIONS), help="comma-separated (default: bf16-true,32; CPU 32)")
    parser.add_argument("--policies", type=names(POLICIES), help="comma-separated memory policies (default: save)")
    parser.add_argument("--row-convolution", choices=("per_module", "none"), help="both networks")
    parser.add_argument("--rounds", type=count, help="samples a figure; the median is reported (default: 3)")
    parser.add_argument("--deep", type=count, help="layers of a network to train beside, say 1000 (default: none)")
    parser.add_argument("--deep-steps", type=count, help="its steps under save; recompute takes 3 (default: 100)")
    parser.add_argument("--deep-learning-rate", type=positive, help="its learning rate (default: 2e-4)")
    parser.add_argument("--output", type=Path, help="folder of the results (default: runs/whole_step)")
    for action in parser._actions:
        action.default = argparse.SUPPRESS


def run(options: argparse.Namespace) -> int:
    """Measure, print each row as it comes, write whole_step.json, table.csv and report.html."""
    import torch

    from experiments.whole_step.report import print_requirements, print_row, write_page, write_record
    from experiments.whole_step.requirements import requirements
    from experiments.whole_step.rows import measure

    options = settled(options, add_arguments, DEFAULTS)
    device = device_of(options.device)
    # cuDNN would otherwise answer a float32 question in tf32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    trainings: list[dict[str, Any]] = []
    gpu = device.type == "cuda"
    grid = networks(
        gpu,
        options.depths,
        [options.hidden_size] if options.hidden_size else None,
        options.batch_sizes,
        options.frames,
        options.precisions or (["bf16-true", "32"] if gpu else ["32"]),
        row_convolution=options.row_convolution,
    )
    for network in grid:
        for row in measure(network, options.policies, device, options.rounds, not options.no_baseline):
            rows.append(asdict(row))
            print_row(rows[-1])
        write_record(options.output, rows, trainings, device)
    for training in deep_trainings(options, grid[-1], device) if options.deep else ():
        trainings.append({**asdict(training), "falls": training.falls})
        print(
            f"{training.num_layers} layers, {training.policy}: loss {training.losses[0]:.5g} -> "
            f"{training.losses[-1]:.5g} in {len(training.losses)} steps of {training.step_ms:.0f} ms"
        )
        write_record(options.output, rows, trainings, device)
    lines = requirements(rows, trainings)
    if any(line.met is not None for line in lines):
        print_requirements(lines)
    write_page(options.output, rows, trainings, device)
    print(f"wrote {options.output / 'report.html'}")
    return 0


def deep_trainings(options: argparse.Namespace, like: Any, device: Any) -> Any:
    """A thousand layers under `save`, then under `recompute`; weights in float32, products in bfloat16."""
    from experiments.whole_step.deep_training import train

    for policy, steps in (("save", options.deep_steps), ("recompute", min(3, options.deep_steps))):
        stack = replace(like.stack, num_layers=options.deep, memory_policy=policy)
        yield train(stack, 4, like.frames, "bf16-mixed", steps, options.deep_learning_rate, device)
