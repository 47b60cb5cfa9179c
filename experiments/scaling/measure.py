"""Where the scaling model's numbers come from: ranks started on this machine, or files that were measured before."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.plan import layer_times
from experiments.scaling.step_model import uniform_gradients

MESSAGE_BYTES = [2**power for power in range(12, 27, 2)]
NEEDED = ("spec", "world_size", "compute", "step", "gradients", "all_reduce", "started", "device")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run `ranks` under torchrun on each number of devices; what they wrote."""
    import torch

    gpus = torch.cuda.device_count() if options.accelerator != "cpu" else 0
    if options.accelerator == "cuda" and not gpus:
        raise ValueError("--accelerator cuda was given and no CUDA device is visible; use --accelerator cpu.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    present = gpus or cores
    devices = options.devices or [2**power for power in range(present.bit_length()) if 2**power <= present]
    if devices[-1] > present:
        kind = "GPUs" if gpus else "cores"
        raise ValueError(f"--devices asks for {devices[-1]} and {present} {kind} are present; give at most {present}.")
    options.output.mkdir(parents=True, exist_ok=True)
    keys = ("num_layers", "hidden_size", "audio_seconds", "channels", "features", "precision", "batch_sizes", "rounds")
    spec = {key: getattr(options, key) for key in keys}
    spec |= {"backend": options.backend, "device": "cuda" if gpus else "cpu", "message_bytes": MESSAGE_BYTES}
    spec_file = options.output / "spec.json"
    spec_file.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    # A device is the same share of the machine at every count.
    threads = "1" if gpus else str(max(1, cores // devices[-1]))
    return [ranks(number, spec_file, options.output / f"measured-{number}.json", threads) for number in devices]


def ranks(number: int, spec: Path, output: Path, threads: str) -> dict[str, Any]:
    """`ranks` on so many devices of this machine. Raises ValueError with its last words where it fails."""
    print(f"measuring on {number} device{'s' if number > 1 else ''}", file=sys.stderr)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
    command += ["-m", "experiments.scaling.ranks", str(spec), str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        log = output.with_suffix(".log")
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        said = [line for line in done.stderr.splitlines() if "Error" in line]
        reason = said[0].strip() if said else f"exit code {done.returncode}"
        raise ValueError(f"measuring on {number} devices failed: {reason}; all it said is in {log}.")
    return read_measured(output)


def read_measured(path: Path) -> dict[str, Any]:
    """A file of `ranks`. Raises ValueError where it is missing or is not one."""
    return layer_times.read_json(path, NEEDED)


def read_compute(options: argparse.Namespace) -> dict[str, Any]:
    """The table of --compute: a file of `ranks`, or a throughput.json whose layers make up a step.

    Raises ValueError where it is neither.
    """
    path: Path = options.compute
    record = layer_times.read_json(path)
    if "peak_tflops" not in record:
        return read_measured(path)
    backend = "persistent" if options.backend == "auto" else options.backend
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[options.precision]
    times = layer_times.measured(path, options.hidden_size, dtype, backend)
    keys = ("num_layers", "hidden_size", "audio_seconds", "precision")
    spec = {key: getattr(options, key) for key in keys}
    compute = times.compute(
        options.num_layers, options.hidden_size, frames_of({"spec": spec}), lambda _: options.overhead
    )
    gradients = uniform_gradients(options.num_layers, 4 * 2 * options.hidden_size**2)
    rows = zip(compute.batch_sizes, compute.forward, compute.backward, strict=True)
    return {
        "spec": spec,
        "world_size": 1,
        "compute": [{"batch_size": b, "forward": f, "backward": w, "optimizer": 0.0} for b, f, w in rows],
        "gradients": [{"bytes": size, "ready": moment} for size, moment in gradients],
        "device": f"{record.get('device', 'unknown device')}, {backend} layers x {options.overhead:g} (assumption)",
        "started": record.get("date", "no date"),
    }


def frames_of(measured: dict[str, Any]) -> float:
    """Time steps of one utterance in the stack: 20 ms each, a tenth of a second of padding at both ends."""
    return round((measured["spec"]["audio_seconds"] + 0.2) / 0.02)
