"""The three effects as one decision: per-GPU batch, accumulation, number of GPUs, hours, memory, and what binds.

For a model, a corpus and a machine it looks through every number of GPUs and per-GPU batch, says what is possible and
what is fastest, and names the source of each number: measured (file, date), given, or assumed. Nothing is trained and
no GPU is needed. It writes, under --output: plan.json, table.csv (one row a candidate) and report.html.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.card import add_card_argument, count, positive, settled
from experiments.scaling.interconnects import PRESETS

if TYPE_CHECKING:
    from experiments.plan.inputs import Inputs
    from experiments.plan.planner import Decision

DEFAULTS: dict[str, Any] = {
    "num_layers": 88,
    "hidden_size": 1152,
    "corpus_hours": 17_000.0,
    "epochs": 20.0,
    "utterance_seconds": 7.0,
    "longest_seconds": 30.0,
    "frame_ms": 20.0,
    "gpus": 128,
    "gpu_memory_gib": 140.0,
    "interconnect": "ib-ndr",
    "gpus_per_node": 8,
    "precision": "bf16",
    "policy": "save",
    "optimizer": "sgd",
    "batch_range": (128, 512),
    "throughput": None,
    "backend": "persistent",
    "step": None,
    "overhead": 1.5,
    "batch_size_results": None,
    "output": Path("runs/plan"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m experiments plan`."""

    def option(name: str, kind: Any, words: str, **more: Any) -> None:
        default = DEFAULTS[name.replace("-", "_")]
        said = ",".join(map(str, default)) if isinstance(default, tuple) else default
        ending = (
            "" if default is None else f" (default: {said:g})" if isinstance(said, float) else f" (default: {said})"
        )
        parser.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, help=words + ending, **more)

    add_card_argument(parser)
    option("num-layers", count, "recurrent layers")
    option("hidden-size", count, "units a layer")
    option("corpus-hours", positive, "of audio")
    option("epochs", positive, "over the corpus")
    option("utterance-seconds", positive, "of a mean utterance: for time")
    option("longest-seconds", positive, "of the longest utterance: for memory")
    option("frame-ms", positive, "a time step after the front-end")
    option("gpus", count, "that there are, at most")
    option("gpu-memory-gib", positive, "of one GPU")
    option("interconnect", str, "what joins the GPUs; all assumptions", choices=list(PRESETS))
    option("gpus-per-node", count, "GPUs in one node")
    option("precision", str, "of compute and saved tensors", choices=["bf16", "fp32"])
    option("policy", str, "what is kept for the backward", choices=["save", "recompute"])
    option("optimizer", str, "for its state", choices=["sgd", "adamw"])
    option("batch-range", batch_range, "algorithmic batches that cost no accuracy, as LEAST,MOST")
    option(
        "throughput",
        Path,
        "throughput.json with the recurrence's times; else what was measured on an H200 (docs/KERNEL.md)",
    )
    option("backend", str, "of the recurrence, one that --throughput has")
    option("step", Path, "measured-1.json of `scaling` on that GPU; puts a measured whole step in --overhead's place")
    option("overhead", positive, "a whole step over the time of its recurrent layers")
    option("batch-size-results", Path, "batch_size.json: what a larger algorithmic batch costs in samples")
    option("output", Path, "folder of the results")


def run(options: argparse.Namespace) -> int:
    """Decide, print, write. Raises ValueError where nothing is possible, or a file does not answer."""
    from experiments.plan.report import plan_record, print_plan, write_results

    options = settled(options, add_arguments, DEFAULTS)
    inputs, decision = decided(options)
    record = plan_record(options, inputs, decision)
    print_plan(record)
    write_results(options.output, record)
    print(f"wrote {options.output / 'report.html'}")
    return 0


def plan(**options: Any) -> "tuple[Inputs, Decision]":
    """The same as a function: `plan(num_layers=88, gpus=1024)`, options named as in `DEFAULTS`; nothing is written.

    Raises ValueError for an option that there is not, and as `run` does.
    """
    unknown = sorted(set(options) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no option of a plan; the options are {', '.join(sorted(DEFAULTS))}.")
    return decided(argparse.Namespace(**{**DEFAULTS, **options}, untouched=frozenset(DEFAULTS) - set(options)))


def decided(options: argparse.Namespace) -> "tuple[Inputs, Decision]":
    """What the options come to: the problem with its sources, and the decision."""
    from experiments.plan.inputs import inputs_of
    from experiments.plan.planner import decide

    inputs = inputs_of(options)
    return inputs, decide(inputs.problem)


def batch_range(text: str) -> tuple[int, int]:
    """`128,512` as two whole numbers, ascending."""
    try:
        least, most = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two whole numbers; write it as 128,512") from None
    if not 1 <= least <= most:
        raise argparse.ArgumentTypeError(f"{text!r} does not ascend from 1 on; write it as 128,512")
    return least, most
