"""What every rank of the scaling experiment runs under torchrun: the parts of a data-parallel step, then whole steps.

    torchrun --nnodes N --nproc-per-node G -m experiments.scaling.ranks SPEC.json MEASURED.json

Rank 0 writes MEASURED.json. All ranks work at the same time, so a part is measured under the load it has in training;
a time is that of the slowest rank. Batch sizes take turns, round after round, and the lower quartile over the rounds is
kept: what else runs on a machine only ever adds time.

| part | how it is measured |
|---|---|
| forward, backward, optimizer | a step without communication (`no_sync`), by per-device batch size |
| ready | share of the backward after which each parameter's gradient is there, from hooks |
| all_reduce | one tensor, by message size |
| step | forward, backward with DDP's bucketed all-reduce beside it, optimiser |
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from experiments.run import provenance
from experiments.run.result import write_atomically
from models.ctc import ctc_losses
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.network import AcousticNetwork
from models.recipe import Recipe
from models.spec_augment import SpecAugmentOptions
from models.stack import StackOptions

TOKENS = 29
TOKENS_A_SECOND = 12
WARM_UP_STEPS = 3  # DDP rebuilds its buckets after the first
TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Spec:
    """What is measured. `precision` is that of compute under autocast; gradients are float32."""

    num_layers: int
    hidden_size: int
    audio_seconds: float
    channels: int
    features: str
    precision: str
    batch_sizes: list[int]
    message_bytes: list[int]
    rounds: int
    backend: str
    device: str


def main(arguments: list[str]) -> None:
    """Measure as SPEC says and write MEASURED on rank 0."""
    spec = Spec(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    device = torch.device(spec.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    on_gpu = device.type == "cuda"
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT, device_id=device if on_gpu else None)
    try:
        measured = Measurement(spec, device).all()
        if dist.get_rank() == 0:
            write_atomically(Path(arguments[1]), json.dumps(measured, indent=1) + "\n")
    finally:
        dist.destroy_process_group()


class Measurement:
    """One model, one batch a size, on this rank's device."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        torch.manual_seed(0)
        self.spec, self.device, self.world_size = spec, device, dist.get_world_size()
        self.network = network(spec).to(device).train()
        self.model: nn.Module = self.network
        if self.world_size > 1:
            self.model = DistributedDataParallel(
                self.network,
                device_ids=[device.index] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,
            )
        self.optimizer = Recipe(optimizer="sgd", learning_rate=1e-6).optimizer_for(self.network)
        self.batches = {size: batch(spec, size, device) for size in spec.batch_sizes}

    def all(self) -> dict[str, Any]:
        """Every part and the whole, as plain data; seconds and bytes."""
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        measured: dict[str, Any] = {
            "spec": asdict(self.spec),
            "world_size": self.world_size,
            "nodes": self.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size)),
            "library": dist.get_backend(),
            "device": provenance.device_name(self.device.type),
            "threads": torch.get_num_threads(),
            "commit": provenance.commit(),
            "versions": provenance.versions(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "parameters": sum(p.numel() for p in parameters),
            "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
        }
        measured["all_reduce"] = self.messages() if self.world_size > 1 else []
        for size in self.batches:
            for _ in range(WARM_UP_STEPS):
                self.step(size, communicate=True)
        measured["gradients"] = self.ready()
        return measured | self.steps()

    def steps(self) -> dict[str, Any]:
        """`compute` and `step` rows by batch size, in turns."""
        parts: dict[int, list[list[float]]] = {size: [] for size in self.batches}
        whole: dict[int, list[float]] = {size: [] for size in self.batches}
        for _ in range(self.spec.rounds):
            for size in self.batches:
                parts[size].append(self.step(size, communicate=False))
                whole[size].append(sum(self.step(size, communicate=True)))
        names = ("forward", "backward", "optimizer")
        return {
            "compute": [
                {"batch_size": size}
                | {name: quartile(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
                for size, rows in parts.items()
            ],
            "step": [
                {"batch_size": size, "seconds": quartile(times), "low": min(times), "high": max(times)}
                for size, times in whole.items()
            ],
        }

    def step(self, size: int, *, communicate: bool) -> list[float]:
        """Seconds of forward, backward and optimiser of one step; the slowest rank's."""
        self.optimizer.zero_grad(set_to_none=True)
        quiet = self.model.no_sync() if isinstance(self.model, DistributedDataParallel) and not communicate else None
        dist.barrier()
        times = []
        with quiet or nullcontext():
            losses: list[Tensor] = []
            times.append(self.clock(lambda: losses.append(self.loss(size))))
            times.append(self.clock(losses[0].backward))
        times.append(self.clock(self.optimizer.step))
        slowest = torch.tensor(times, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.tolist()

    def loss(self, size: int) -> Tensor:
        """Mean CTC loss of the batch of that size."""
        audio, audio_lengths, tokens, token_lengths = self.batches[size]
        autocast = self.spec.precision != "fp32"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            log_probs, lengths = self.model(audio, audio_lengths)
        return ctc_losses(log_probs, lengths, tokens, token_lengths).mean()

    def clock(self, call: Callable[[], object]) -> float:
        """Seconds until `call` is done on the device."""
        start = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def messages(self) -> list[dict[str, float]]:
        """Rows of message size and seconds."""
        tensors = {size: torch.zeros(max(1, size // 4), device=self.device) for size in self.spec.message_bytes}
        samples: dict[int, list[float]] = {size: [] for size in tensors}
        for round_number in range(self.spec.rounds + 1):
            for size, tensor in tensors.items():
                calls = 20 if size <= 2**20 else 3
                dist.barrier()
                seconds = self.clock(partial(_all_reduce, tensor, calls)) / calls
                slowest = torch.tensor(seconds, dtype=torch.float64, device=self.device)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                if round_number:  # the first one connects
                    samples[size].append(slowest.item())
        return [
            {"bytes": tensors[size].numel() * 4, "seconds": quartile(s), "low": min(s), "high": max(s)}
            for size, s in samples.items()
        ]

    def ready(self) -> list[dict[str, float]]:
        """Bytes of each parameter and when its gradient is made, in that order, at the middle batch size."""
        size = self.spec.batch_sizes[len(self.spec.batch_sizes) // 2]
        moments: dict[str, list[float]] = {name: [] for name, _ in self.network.named_parameters()}
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(self.spec.rounds):
            loss = self.loss(size)
            made: dict[str, Any] = {}
            handles = [
                p.register_post_accumulate_grad_hook(lambda _, name=name, made=made: made.update({name: self.mark()}))
                for name, p in self.network.named_parameters()
            ]
            start = self.mark()
            loss.backward()
            end = self.mark()
            for handle in handles:
                handle.remove()
            for name, moment in made.items():
                moments[name].append(self.between(start, moment) / self.between(start, end))
        sizes = {name: p.numel() * p.element_size() for name, p in self.network.named_parameters()}
        order = sorted((statistics.median(m), name) for name, m in moments.items() if m)
        return [{"bytes": sizes[name], "ready": moment} for moment, name in order]

    def mark(self) -> Any:
        """A moment on the device: an event in its stream, so that nothing waits, or the clock."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Time between two marks, in any unit."""
        if self.device.type != "cuda":
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end))


def _all_reduce(tensor: Tensor, calls: int) -> None:
    for _ in range(calls):
        dist.all_reduce(tensor)


def quartile(samples: Sequence[float]) -> float:
    """The lower quartile; of fewer than four samples the lowest."""
    return sorted(samples)[(len(samples) - 1) // 4]


def network(spec: Spec) -> AcousticNetwork:
    """The recogniser's network at the spec's depth and width."""
    return AcousticNetwork(
        StackOptions(spec.num_layers, spec.hidden_size, backend=spec.backend),
        TOKENS,
        FeatureOptions(kind=spec.features),  # type: ignore[arg-type]
        FrontEndOptions(channels=spec.channels),
        SpecAugmentOptions(),
    )


def batch(spec: Spec, size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """audio [B,N], audio_lengths, tokens [B,U], token_lengths: noise and random characters, equal lengths."""
    generator = torch.Generator().manual_seed(1)
    samples = round(spec.audio_seconds * 16_000)
    tokens = max(1, round(spec.audio_seconds * TOKENS_A_SECOND))
    audio = 0.1 * torch.randn(size, samples, generator=generator)
    text = torch.randint(1, TOKENS, (size, tokens), generator=generator)
    lengths = torch.full((size,), samples), torch.full((size,), tokens)
    return audio.to(device), lengths[0].to(device), text.to(device), lengths[1].to(device)


if __name__ == "__main__":
    main(sys.argv[1:])
