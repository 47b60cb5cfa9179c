"""A training step as CUDA graphs: its launches recorded once and started together, at no host time a launch.

The stack's forward and backward are one graph. The whole step is two, with CTC between them, because PyTorch's CTC
copies lengths from the device and waits: features to log-probabilities, then the gradient of the log-probabilities to
the optimiser. Both graphs share one pool of memory, in which every tensor keeps its address, so a graph serves one
mini-batch and number of frames. Training, whose shapes vary from batch to batch, is not captured.

Where capture is impossible or fails, `StackGraph.replay` and `StepGraph.replay` are None and `why_not` says why.
"""

from collections.abc import Callable
from typing import Any

import torch

from experiments.memory.bare_step import BareStep, StepOptions
from experiments.whole_step.stack_step import StackStep

WARM_UPS = 3
"""Runs before a capture: kernels are compiled, plans and workspaces made."""


def refusal(options: StepOptions, device: torch.device) -> str | None:
    """Why a step of these options cannot be captured; None where it can be tried."""
    if device.type != "cuda":
        return f"CUDA graphs need a CUDA device and this is {device.type}."
    if options.stack.memory_policy == "offload":
        return "memory_policy offload allocates host memory in every step; capture save or recompute."
    if options.stack.normalization == "sync_batch":
        return "synchronised batch norm waits for other ranks; capture local batch norm."
    return None


class StackGraph:
    """Forward and backward of a `StackStep`."""

    def __init__(self, step: StackStep) -> None:
        self.replay: Callable[[], None] | None = None
        self.why_not = refusal(step.options, step.device)
        if self.why_not is None:
            self.why_not = _attempt(lambda: self._capture(step))

    def _capture(self, step: StackStep) -> None:
        stream = _warmed_up(step.fresh, step.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step.fresh()
        self.replay = graph.replay


class StepGraph:
    """A whole `BareStep`."""

    def __init__(self, step: BareStep) -> None:
        self.replay: Callable[[], None] | None = None
        self.why_not = refusal(step.options, step.device)
        if self.why_not is None:
            self.why_not = _attempt(lambda: self._capture(step))

    def _capture(self, step: BareStep) -> None:
        for group in step.optimizer.param_groups:
            group["capturable"] = True
        stream = _warmed_up(step.train, step.device)
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(first, stream=stream):
            log_probs, lengths = step.log_probabilities()
        leaf = log_probs.detach().requires_grad_()
        gradient = torch.zeros_like(leaf)
        step.optimizer.zero_grad()
        with torch.cuda.graph(second, stream=stream, pool=first.pool()):
            log_probs.backward(gradient)
            step.optimizer.step()

        def replay() -> None:
            first.replay()
            gradient.copy_(torch.autograd.grad(step.loss(leaf, lengths), leaf)[0])
            second.replay()

        replay()
        torch.cuda.synchronize()
        self.replay = replay


def _warmed_up(run: Callable[[], Any], device: torch.device) -> torch.cuda.Stream:
    """A stream on which `run` has run as often as it takes."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    return stream


def _attempt(capture: Callable[[], None]) -> str | None:
    """What a capture failed of, as one sentence; None where it did not."""
    try:
        capture()
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return f"Capture failed: {' '.join(str(error).split())[:300]}"
    return None
