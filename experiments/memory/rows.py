"""One line of the memory study: a training step as it ran or as it was traced, beside what was predicted of it."""

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One network, batch and policy; bytes, and tensors a layer in units of one [T,B,H]."""

    num_layers: int
    hidden_size: int
    batch_size: int
    frames: int
    policy: str
    precision: str
    optimizer: str
    device: str
    parameters: int
    tensors_per_layer: float
    saved_bytes: int
    stack_bytes: int
    segment_bytes: int
    activation_bytes: int
    peak_memory_bytes: int
    peak_memory_source: str
    predicted_saved_bytes: int
    predicted_peak_memory_bytes: int
    workspace_bytes: int | None
    """On CUDA: what the peak has beyond the tensors of the traced step, which `WORKSPACE` stands for."""
    step_ms: float | None
    baseline_tensors_per_layer: float | None
    baseline_saved_bytes: int | None
    baseline_activation_bytes: int | None
    baseline_peak_memory_bytes: int | None
    baseline_step_ms: float | None
    activation_ratio: float | None
    """Ours over the baseline's."""


@dataclass(frozen=True)
class Measured:
    """One step, as it ran."""

    saved: int
    stack: int
    activation: int
    peak: int
    step_ms: float | None = None


def measure(options: Any, device: Any, ordinary: bool = False) -> Measured:
    """Run the step: once to warm up, once for what it keeps, once for the peak, three times for the clock."""
    import torch

    from experiments.memory.bare_step import BareStep
    from experiments.memory.prediction import footprint

    step = BareStep(options, device, ordinary)
    step.step()
    kept = footprint(step)
    activation, peak = kept.saved + kept.segment, kept.accounted
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step.backward()
        torch.cuda.synchronize()
        activation = torch.cuda.max_memory_allocated() - before
        step.optimizer.step()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        step.optimizer.zero_grad(set_to_none=False)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        step.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return Measured(kept.saved, kept.stack, activation, peak, 1e3 * statistics.median(seconds))


def traced(options: Any) -> Measured:
    """What the step would need on CUDA."""
    from experiments.memory.prediction import WORKSPACE, predict

    found = predict(options)
    activation = found.peak - found.parameters - found.gradients - found.optimizer
    return Measured(found.saved, found.stack, activation, found.peak + WORKSPACE)


def row(options: Any, device: Any, own: Measured, ordinary: Measured | None, source: str) -> Row:
    """What was measured beside what was predicted and what ordinary layers need."""
    from experiments.memory.prediction import WORKSPACE, predict
    from experiments.run.provenance import device_name

    stack, expected = options.stack, predict(options)
    unit = options.tensor_bytes * stack.num_layers
    return Row(
        num_layers=stack.num_layers,
        hidden_size=stack.hidden_size,
        batch_size=options.batch_size,
        frames=options.frames,
        policy=stack.memory_policy,
        precision=options.precision,
        optimizer=options.optimizer,
        device="traced" if source == "predicted" else device_name(device.type),
        parameters=expected.parameters // (2 if options.precision == "bf16-true" else 4),
        tensors_per_layer=own.stack / unit,
        saved_bytes=own.saved,
        stack_bytes=own.stack,
        segment_bytes=expected.segment,
        activation_bytes=own.activation,
        peak_memory_bytes=own.peak,
        peak_memory_source=source,
        predicted_saved_bytes=expected.saved,
        predicted_peak_memory_bytes=expected.accounted if source == "accounted" else expected.peak + WORKSPACE,
        workspace_bytes=own.peak - expected.peak if source == "measured" else None,
        step_ms=own.step_ms,
        baseline_tensors_per_layer=ordinary.stack / unit if ordinary else None,
        baseline_saved_bytes=ordinary.saved if ordinary else None,
        baseline_activation_bytes=ordinary.activation if ordinary else None,
        baseline_peak_memory_bytes=ordinary.peak if ordinary else None,
        baseline_step_ms=ordinary.step_ms if ordinary else None,
        activation_ratio=own.activation / ordinary.activation if ordinary else None,
    )


def available_bytes(device: Any) -> int:
    """Of the whole device."""
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
