"""From the plan's options to the planner's problem, with the source of every number.

compute    L layers of (recurrence + input GEMM) times an overhead for all else in the step   `layer_times.py`
memory     `memory.py` at the longest utterance
network    an interconnect preset, gradients in fp32, DDP's buckets                            `step_model.py`
samples    corpus hours / mean utterance * epochs, times what the algorithmic batch costs
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

from experiments.plan import layer_times
from experiments.plan.facts import Fact
from experiments.plan.layer_times import LayerTimes, read_json
from experiments.plan.memory import memory_of
from experiments.plan.planner import Problem
from experiments.scaling.interconnects import preset
from experiments.scaling.step_model import buckets_of, uniform_gradients

# Why a default of the command is what it is.
SOURCES = {
    "num_layers": "Diamos et al. 2016, table 3: the deepest network",
    "hidden_size": "Diamos et al. 2016, table 3",
    "corpus_hours": "the corpus on which the paper's authors saw accuracy improve to 88 layers",
    "epochs": "Diamos et al. 2016: 20 epochs",
    "utterance_seconds": "Diamos et al. 2016: about 350 time steps, of 20 ms",
    "longest_seconds": "Diamos et al. 2016: memory is counted for 30 s",
    "frame_ms": "the front-end's stride",
    "gpus": "Diamos et al. 2016: 128 GPUs",
    "gpu_memory_gib": "an H200 as its driver reports it, about 140 GiB",
}


DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
# H200 data sheet; an optimiser step reads and writes every parameter's state once.
MEMORY_BANDWIDTH = 4.8e12
OPTIMIZER_ACCESSES = {"sgd": 5, "adamw": 7}
MEMORY_RESERVE = 0.08


@dataclass(frozen=True)
class Inputs:
    """A problem and what it stands on."""

    problem: Problem
    facts: tuple[Fact, ...]
    parameters: int


def inputs_of(options: argparse.Namespace) -> Inputs:
    """The problem that the options describe. Raises ValueError for files that do not answer it."""
    dtype = DTYPES[options.precision]
    path = options.throughput or layer_times.OWN_MEASUREMENT
    times = layer_times.measured(path, options.hidden_size, dtype, options.backend)
    frames = options.utterance_seconds * 1000 / options.frame_ms
    overhead, overhead_facts = overhead_of(options, times, frames)
    memory, parameters, memory_facts = memory_of(options)
    factor, most_batch, sample_facts = sample_factor_of(options)
    accesses = OPTIMIZER_ACCESSES[options.optimizer]
    optimizer = 4 * accesses * parameters / MEMORY_BANDWIDTH
    compute = times.compute(options.num_layers, options.hidden_size, frames, overhead, optimizer)
    net = preset(options.interconnect, options.gpus_per_node)
    layer_bytes = 4 * 2 * options.hidden_size**2
    rest = max(0, 4 * parameters - options.num_layers * layer_bytes)
    least, most = options.batch_range
    problem = Problem(
        compute=compute,
        buckets=tuple(buckets_of(uniform_gradients(options.num_layers, layer_bytes, rest))),
        net=net,
        most_gpus=options.gpus,
        memory=memory,
        memory_limit=(1 - MEMORY_RESERVE) * options.gpu_memory_gib * 2**30,
        least_batch=least,
        most_batch=min(most, most_batch),
        utterances=options.corpus_hours * 3600 / options.utterance_seconds * options.epochs,
        sample_factor=factor,
    )
    facts = (
        *given_facts(options),
        *times.facts,
        *overhead_facts,
        Fact(
            "optimiser step",
            compute.optimizer * 1e3,
            "ms",
            "assumption",
            f"{accesses} passes over fp32 parameters at the H200's 4.8 TB/s (data sheet)",
        ),
        *memory_facts,
        Fact("memory kept free", MEMORY_RESERVE, "of the GPU", "assumption", "context, NCCL buffers, fragmentation"),
        Fact("gradients", 4 * parameters, "bytes", "given", "fp32, in DDP's buckets of 25 MiB"),
        Fact(f"interconnect {net.name}", net.node_bandwidth / 1e9, "GB/s a node", "assumption", net.source),
        Fact("overlap", "ideal", "", "assumption", "the kernel leaves at least 16 multiprocessors to NCCL"),
        Fact(
            "utterances", "equally long", "", "assumption", "batches are bucketed by length; no GPU waits for another"
        ),
        *sample_facts,
    )
    return Inputs(problem, facts, parameters)


def overhead_of(
    options: argparse.Namespace, times: LayerTimes, frames: float
) -> tuple[Callable[[int], float], list[Fact]]:
    """What multiplies the layers' time for everything else in a step: assumed, or from a measured whole step."""
    if options.step is None:
        words = "front-end, batch norm, row convolutions, CTC; --step FILE puts a measured whole step in its place"
        return lambda _: options.overhead, [
            Fact("whole step over its layers", options.overhead, "x", "assumption", words)
        ]
    record = read_json(options.step, ("spec", "compute", "device", "started"))
    spec = record["spec"]
    if spec["hidden_size"] != options.hidden_size or spec["precision"] != options.precision:
        raise ValueError(
            f"{options.step} was measured at {spec['hidden_size']} units in {spec['precision']} and the plan is for "
            f"{options.hidden_size} in {options.precision}; measure that by `python -m experiments scaling`."
        )
    measured_frames = round((spec["audio_seconds"] + 0.2) * 1000 / options.frame_ms)
    parts = times.compute(spec["num_layers"], spec["hidden_size"], measured_frames)
    factors = {
        row["batch_size"]: (row["forward"] + row["backward"]) / sum(parts.at(row["batch_size"]))
        for row in record["compute"]
    }
    source = f"{options.step.name}, {record['device']}, {record['started']}, {spec['num_layers']} layers"
    facts = [
        Fact(f"whole step over its layers, mini-batch {size}", factor, "x", "measured", source)
        for size, factor in factors.items()
    ]
    return lambda size: _between(factors, size), facts


def sample_factor_of(options: argparse.Namespace) -> tuple[Callable[[int], float], int, list[Fact]]:
    """Samples to the same loss by algorithmic batch, relative to the fewest; and the largest batch it is known for."""
    least, most = options.batch_range
    span = Fact(
        "algorithmic batch",
        f"{least} to {most}",
        "utterances",
        "assumption",
        "Diamos et al. 2016, figure 8: as good to 512, some cost at 1,024, bad at 2,048 (--batch-range)",
    )
    if options.batch_size_results is None:
        words = "none within the range; --batch-size-results FILE puts measured samples in its place"
        return lambda _: 1.0, most, [span, Fact("cost of a larger batch", 1.0, "x samples", "assumption", words)]
    record = read_json(options.batch_size_results, ("curve", "written"))
    samples = {
        row["global_batch_size"]: row["samples_to_target"] for row in record["curve"] if row["samples_to_target"]
    }
    if not samples:
        raise ValueError(f"{options.batch_size_results} has no batch size that reached the target; train it longer.")
    fewest = min(samples.values())
    factors = {size: count / fewest for size, count in samples.items()}
    source = f"{options.batch_size_results.name}, {record['written']}"
    facts = [
        Fact(f"samples to the target at batch {size}", factor, "x", "measured", source)
        for size, factor in sorted(factors.items())
    ]
    return lambda size: _between(factors, size), max(factors), [span, *facts]


def given_facts(options: argparse.Namespace) -> list[Fact]:
    """What the user asked for, and the corpus's figures where they are defaults."""
    keys = {
        "num_layers": ("recurrent layers", ""),
        "hidden_size": ("units a layer", ""),
        "corpus_hours": ("corpus", "hours"),
        "epochs": ("epochs", ""),
        "utterance_seconds": ("mean utterance", "s"),
        "longest_seconds": ("longest utterance", "s"),
        "frame_ms": ("frame", "ms"),
        "gpus": ("GPUs, at most", ""),
        "gpu_memory_gib": ("memory of a GPU", "GiB"),
    }
    return [
        Fact(name, getattr(options, key), unit, "assumption" if key in options.untouched else "given",
             SOURCES[key] if key in options.untouched else "option or card")
        for key, (name, unit) in keys.items()
    ]  # fmt: skip


def _between(table: dict[int, float], size: float) -> float:
    """On a line over log size between the table's entries, the nearest one outside."""
    keys = sorted(table)
    if size <= keys[0] or size >= keys[-1]:
        return table[keys[0] if size <= keys[0] else keys[-1]]
    above = next(key for key in keys if key >= size)
    below = keys[keys.index(above) - 1]
    weight = math.log(size / below) / math.log(above / below)
    return (1 - weight) * table[below] + weight * table[above]
