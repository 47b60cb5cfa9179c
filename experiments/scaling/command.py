"""Strong and weak scaling by number of devices: measured on those present, modelled to 1,024 GPUs.

Measured, under torchrun with DDP (gloo on CPU, NCCL on GPUs): compute by per-device batch, when each gradient is ready,
all-reduce by message size, and whole steps. A model is fitted to these parts, its error on measured steps is stated,
fitted and left out, and it is extended over interconnects that are named assumptions. It writes, under --output:
scaling.json, table.csv, report.html and measured-N.json, what N devices measured.

On a cluster, measure once with torchrun and hand the file over:
  torchrun --nnodes 2 --nproc-per-node 8 -m experiments.scaling.ranks OUTPUT/spec.json measured-16.json
  python -m experiments scaling --measured measured-16.json --output runs/scaling
"""

import argparse
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.card import add_card_argument, count, positive, settled, whole_numbers
from experiments.option_lists import names
from experiments.scaling.interconnects import PRESETS, preset
from experiments.scaling.measure import frames_of, measure, read_compute, read_measured

DEFAULTS: dict[str, Any] = {
    "devices": None,
    "batch_sizes": [1, 2, 4, 8, 16],
    "num_layers": 4,
    "hidden_size": 512,
    "audio_seconds": 2.0,
    "features": "log_mel",
    "channels": 8,
    "precision": "fp32",
    "backend": "auto",
    "accelerator": "auto",
    "rounds": 9,
    "measured": [],
    "compute": None,
    "overhead": 1.5,
    "interconnects": ["ib-ndr", "ib-hdr", "ethernet-100"],
    "gpus_per_node": 8,
    "most_gpus": 1024,
    "global_batch_size": 512,
    "weak_batch_size": 4,
    "output": Path("runs/scaling"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m experiments scaling`."""

    def option(name: str, kind: Any, words: str, **more: Any) -> None:
        key = name.replace("-", "_")
        default = DEFAULTS[key]
        said = ",".join(map(str, default)) if isinstance(default, list) else default
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=argparse.SUPPRESS,
            help=words if said in (None, "") else f"{words} (default: {said})",
            **more,
        )

    add_card_argument(parser)
    option("devices", whole_numbers, "numbers of devices to measure on (default: 1, 2, 4, ... of those present)")
    option("batch-sizes", whole_numbers, "per-device batch sizes to measure")
    option("num-layers", count, "recurrent layers")
    option("hidden-size", count, "units a layer")
    option("audio-seconds", positive, "of each utterance")
    option("features", str, "the front-end's input", choices=["log_mel", "log_spectrogram"])
    option("channels", count, "of the front-end's convolutions")
    option("precision", str, "of compute; gradients are fp32", choices=["fp32", "bf16"])
    option("backend", str, "of the recurrence", choices=["auto", "persistent", "cudnn", "reference"])
    option("accelerator", str, "where to measure", choices=["auto", "cpu", "cuda"])
    option("rounds", count, "samples a figure")
    option("measured", paths, "measured-N.json files to use instead of measuring")
    option("compute", Path, "measured-N.json or throughput.json of the GPU to extend; else the devices measured here")
    option("overhead", positive, "with a throughput.json: a whole step over the time of its recurrent layers")
    option("interconnects", names(tuple(PRESETS)), f"to extend over, from {', '.join(PRESETS)}")
    option("gpus-per-node", count, "of the extension")
    option("most-gpus", count, "of the extension")
    option("global-batch-size", count, "algorithmic batch of strong scaling")
    option("weak-batch-size", count, "per-device batch of weak scaling")
    option("output", Path, "folder of the results")


def run(options: argparse.Namespace) -> int:
    """Measure, fit, extend, write. Raises ValueError for what cannot be measured or read."""
    options = settled(options, add_arguments, DEFAULTS)
    record = study(options)
    from experiments.scaling.report import print_summary, write_results

    write_results(options.output, record)
    print_summary(record)
    print(f"wrote {options.output / 'report.html'}")
    return 0


def study(options: argparse.Namespace) -> dict[str, Any]:
    """All that scaling.json holds. Raises ValueError for what cannot be measured or read."""
    from experiments.run.provenance import commit, versions
    from experiments.scaling import model

    nets = [preset(name, options.gpus_per_node) for name in options.interconnects]
    here = preset(options.interconnects[0], options.gpus_per_node)
    measured = [read_measured(path) for path in options.measured] or measure(options)
    largest = max(measured, key=lambda one: one["world_size"])
    fitted = model.fit_model(largest, here)
    source = largest if options.compute is None else read_compute(options)
    # Compute and buckets of the named GPU; the overlap is ideal there, because its cores do not copy.
    extended = fitted if options.compute is None else model.fit_model(source | {"world_size": 1}, here)
    frames = frames_of(source)
    counts = [2**power for power in range(options.most_gpus.bit_length()) if 2**power <= options.most_gpus]
    rows = [row for net in nets for row in curves(extended, net, source["spec"], frames, counts, options)]
    several = largest["world_size"] > 1
    return {
        "experiment": "scaling",
        "command": " ".join(["python -m experiments", *sys.argv[1:]]),
        "commit": commit(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "measured": measured,
        # Measured points belong beside curves of the same devices alone.
        "measured_is_extended": options.compute is None,
        "compute_source": source_words(source, options.compute),
        "compute_spec": source["spec"],
        "frames": frames,
        "fit": {
            "seconds_per_hop": fitted.net.ring_gpu_latency,
            "bytes_per_second": fitted.net.gpu_bandwidth * fitted.net.efficiency,
            "contention": fitted.overlap.contention,
            "overhead_seconds": fitted.overlap.overhead,
            "bucket_bytes": [bucket.size for bucket in fitted.buckets],
        }
        if several
        else None,
        "all_reduce": all_reduce_rows(largest, fitted) if several else [],
        "errors": [
            asdict(one) | {"error": one.error}
            for one in (
                *model.fitted_steps(largest, fitted),
                *model.held_out_steps(largest, here),
                *model.held_out_devices(measured, here),
            )
        ]
        if several
        else [],
        "interconnects": [net.record() for net in nets],
        "options": {key: getattr(options, key) for key in ("global_batch_size", "weak_batch_size", "most_gpus")},
        "rows": measured_rows(measured, frames) + [asdict(row) | {"source": "model"} for row in rows],
    }


def curves(extended: Any, net: Any, spec: dict[str, Any], frames: float, counts: list[int], options: Any) -> list[Any]:
    """Strong and weak scaling over one interconnect."""
    from experiments.scaling import model

    return [
        *model.strong(extended, net, spec, frames, counts, options.global_batch_size),
        *model.weak(extended, net, spec, frames, counts, options.weak_batch_size),
    ]


def all_reduce_rows(measured: dict[str, Any], fitted: Any) -> list[dict[str, float]]:
    """Measured message sizes beside the fit."""
    from experiments.scaling.communication import all_reduce_seconds

    rows = []
    for row in measured["all_reduce"]:
        predicted = all_reduce_seconds(row["bytes"], measured["world_size"], fitted.net)
        rows.append(row | {"predicted": predicted, "error": predicted / row["seconds"] - 1})
    return rows


def measured_rows(measured: list[dict[str, Any]], frames: float) -> list[dict[str, Any]]:
    """Measured steps as points: weak scaling by batch size, strong scaling by global batch."""
    from experiments.scaling.model import step_flops

    rows: list[dict[str, Any]] = []
    single = {row["batch_size"]: row["seconds"] for one in measured if one["world_size"] == 1 for row in one["step"]}
    for one in measured:
        for row in one["step"]:
            size, seconds = row["batch_size"], row["seconds"]
            utterances = size * one["world_size"]
            rates = {"weak": single.get(size), "strong": single.get(utterances)}
            for mode, alone in rates.items():
                if alone is None:
                    continue
                perfect = alone if mode == "weak" else alone / one["world_size"]
                rows.append(
                    {
                        "mode": mode,
                        "interconnect": one["library"],
                        "devices": one["world_size"],
                        "batch_size": size,
                        "accumulation": 1,
                        "global_batch_size": utterances,
                        "step_ms": seconds * 1e3,
                        "utterances_per_second": utterances / seconds,
                        "tflops": step_flops(one["spec"], utterances, frames) / seconds / 1e12,
                        "efficiency": perfect / seconds,
                        "source": "measured",
                    }
                )
    return rows


def source_words(measured: dict[str, Any], path: Path | None) -> str:
    """Where the extension's compute times come from."""
    where = "this run" if path is None else path.name
    return f"{measured['device']}, {measured['world_size']} devices, {measured['started']} ({where})"


def paths(text: str) -> list[Path]:
    """Comma-separated files."""
    return [Path(part) for part in text.split(",")]
