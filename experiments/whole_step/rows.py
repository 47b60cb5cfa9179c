"""One line of the whole-step study: a network in one precision under one policy, beside the network of ordinary layers.

All contestants of a network take turns in one process. Memory is measured before any clock runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import prnn_ext  # noqa: F401 - registers torch.ops.prnn_ext
from experiments.memory.bare_step import BareStep, StepOptions
from experiments.run.provenance import device_name
from experiments.throughput.timing import alternate
from experiments.whole_step.captured import StackGraph, StepGraph
from experiments.whole_step.profiled_parts import parts_of
from experiments.whole_step.stack_step import LARGE, StackStep


@dataclass(frozen=True)
class Row:
    """Milliseconds (median of the rounds) and bytes; `ordinary_*` are those of the network of ordinary layers."""

    num_layers: int
    hidden_size: int
    batch_size: int
    frames: int
    precision: str
    policy: str
    backend: str
    device: str
    stack_ms: float
    stack_low_ms: float
    stack_high_ms: float
    stack_host_ms: float
    """Until the host has launched all of it: near `stack_ms` the host is what is waited for."""
    stack_graph_ms: float | None
    """The same launches replayed as a CUDA graph."""
    step_ms: float
    step_graph_ms: float | None
    graph: str
    """`captured`, or why not."""
    audio_seconds_per_second: float
    stack_activation_bytes: int | None
    ordinary_stack_ms: float | None
    ordinary_less_matrix_ms: float | None
    ordinary_step_ms: float | None
    ordinary_audio_seconds_per_second: float | None
    ordinary_stack_activation_bytes: int | None
    stack_speedup: float | None
    stack_speedup_less_matrix: float | None
    step_speedup: float | None
    activation_ratio: float | None
    recurrence_ms: float
    """Of all layers, forward and backward, timed alone."""
    products_ms: float
    """FLOPs of the stack's products at the speed of one large product."""
    roofline_ms: float
    """The sum of the two."""
    over_roofline: float
    parts_ms: dict[str, float]
    """Kernels of one profiled step."""
    ordinary_parts_ms: dict[str, float]


def measure(
    options: StepOptions, policies: Sequence[Any], device: torch.device, rounds: int, baseline: bool
) -> list[Row]:
    """One network: a row a policy."""
    variants = {policy: replace(options, stack=replace(options.stack, memory_policy=policy)) for policy in policies}
    stacks = {policy: StackStep(variant, device) for policy, variant in variants.items()}
    if baseline:
        stacks["ordinary"] = StackStep(options, device, ordinary=True)
    memory = {name: activation_bytes(stack.both, device) for name, stack in stacks.items()}
    host = {name: host_seconds(stack.fresh, device) for name, stack in stacks.items()}
    calls: dict[str, Callable[[], object]] = {name: stack.fresh for name, stack in stacks.items()}
    graphs = {policy: StackGraph(stacks[policy]) for policy in policies}
    calls |= {f"{policy} graph": graph.replay for policy, graph in graphs.items() if graph.replay is not None}
    stack_times = alternate(calls, device=device, rounds=rounds)
    backend = stacks[policies[0]].plan()
    parts = alternate(stacks[policies[0]].parts(), device=device, rounds=max(rounds, 5))
    del stacks, calls, graphs
    _release(device)
    steps = {policy: BareStep(variant, device) for policy, variant in variants.items()}
    if baseline:
        steps["ordinary"] = BareStep(options, device, ordinary=True)
    calls = {name: step.train for name, step in steps.items()}
    profiles = {name: parts_of(step.train, device) for name, step in steps.items()}
    captured = {policy: StepGraph(steps[policy]) for policy in policies}
    calls |= {f"{policy} graph": graph.replay for policy, graph in captured.items() if graph.replay is not None}
    step_times = alternate(calls, device=device, rounds=rounds)
    audio = steps[policies[0]].audio_seconds
    why = {policy: captured[policy].why_not or "captured" for policy in policies}
    del steps, calls, captured
    _release(device)

    layers, H = options.stack.num_layers, options.stack.hidden_size
    ordinary = _ms(stack_times, "ordinary")
    ordinary_step = _ms(step_times, "ordinary")
    matrix = 1e3 * parts["own_matrix"].median * layers
    recurrence = 1e3 * parts["recurrence"].median * layers
    # x W^T twice, since it is made again, dx, dW and dU.
    flops = 5 * layers * 2 * options.frames * options.batch_size * H**2
    size = LARGE if device.type == "cuda" else 512
    products = 1e3 * flops * parts["large"].median / (2 * size**3)
    rows = []
    for policy in policies:
        own, step = 1e3 * stack_times[policy].median, 1e3 * step_times[policy].median
        rows.append(
            Row(
                num_layers=layers,
                hidden_size=H,
                batch_size=options.batch_size,
                frames=options.frames,
                precision=options.precision,
                policy=policy,
                backend=backend,
                device=device_name(device.type),
                stack_ms=own,
                stack_low_ms=1e3 * stack_times[policy].low,
                stack_high_ms=1e3 * stack_times[policy].high,
                stack_host_ms=1e3 * host[policy],
                stack_graph_ms=_ms(stack_times, f"{policy} graph"),
                step_ms=step,
                step_graph_ms=_ms(step_times, f"{policy} graph"),
                graph=why[policy],
                audio_seconds_per_second=1e3 * audio / step,
                stack_activation_bytes=memory[policy],
                ordinary_stack_ms=ordinary,
                ordinary_less_matrix_ms=None if ordinary is None else ordinary - matrix,
                ordinary_step_ms=ordinary_step,
                ordinary_audio_seconds_per_second=None if ordinary_step is None else 1e3 * audio / ordinary_step,
                ordinary_stack_activation_bytes=memory.get("ordinary"),
                stack_speedup=_ratio(ordinary, own),
                stack_speedup_less_matrix=None if ordinary is None else (ordinary - matrix) / own,
                step_speedup=_ratio(ordinary_step, step),
                activation_ratio=_ratio(memory[policy], memory.get("ordinary")),
                recurrence_ms=recurrence,
                products_ms=products,
                roofline_ms=recurrence + products,
                over_roofline=own / (recurrence + products),
                parts_ms=profiles[policy],
                ordinary_parts_ms=profiles.get("ordinary", {}),
            )
        )
    return rows


def activation_bytes(both: Callable[[], object], device: torch.device) -> int | None:
    """Peak over forward and backward less what was alive before; None on a CPU, whose allocator does not say."""
    both()
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def host_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Until everything is launched."""
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    if device.type == "cuda":
        torch.cuda.synchronize()
    return seconds


def _release(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _ms(times: Any, name: str) -> float | None:
    return 1e3 * times[name].median if name in times else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None
