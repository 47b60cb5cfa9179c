"""What a training step will need, before it is run: the same code on tensors that have shapes and no memory.

`predict` runs forward, backward and optimiser under `FakeTensorMode` and counts

    parameters, gradients, optimiser state        tensors that live all the time
    front_end, stack, head, rest                  distinct storages that each part keeps for backward
    segment                                       under `recompute`: what its largest segment keeps while it runs again
    peak                                          highest sum of all tensors alive at once, transient ones included
    peaks                                         the same by phase of the step: forward and backward of stack and head,
                                                  and all else

in bytes, so nothing is modelled and nothing can go stale; on a CPU the saved bytes are exact. CUDA adds `WORKSPACE`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from experiments.memory.bare_step import BareStep, StepOptions
from experiments.memory.live_bytes import LiveBytes
from models.memory_policy import segments
from models.saved_tensors import saved_by_part, saved_bytes
from models.stack import RecurrentStack

WORKSPACE = 64 * 2**20
"""Bytes on CUDA beyond tensors: cuBLAS keeps 32 MiB on Hopper, cuDNN about as much for the front-end."""


PHASES = ("around", "stack forward", "head", "stack backward")
"""`around`: features and front-end, forward and backward, and the optimiser; `head`: with CTC, both ways."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of one training step."""

    parameters: int
    gradients: int
    optimizer: int
    front_end: int
    stack: int
    head: int
    rest: int
    segment: int
    peak: int
    peaks: tuple[int, ...]
    """One for each of `PHASES`."""

    @property
    def saved(self) -> int:
        """For backward, at the end of forward."""
        return self.front_end + self.stack + self.head + self.rest

    @property
    def accounted(self) -> int:
        """What a CPU run reports as its peak."""
        return self.parameters + self.gradients + self.optimizer + self.saved + self.segment


@lru_cache(maxsize=256)
def predict(options: StepOptions, ordinary: bool = False) -> Footprint:
    """The footprint of a step; `ordinary` for the network of ordinary layers."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = BareStep(options, ordinary=ordinary)
        step.step()
        return footprint(step)


def footprint(step: BareStep) -> Footprint:
    """The footprint of a step that has run once; real and fake steps are counted alike."""
    network = step.network
    parameters = list(network.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    state = [value for entry in step.optimizer.state.values() for value in entry.values()]
    parts = {"front_end": network.front_end, "stack": network.stack, "head": network.head}
    saved = saved_by_part(step.forward, parts, step.alive)
    with LiveBytes([*step.alive, *gradients, *state], PHASES[0]) as live, _phases(network.stack, live):
        step.step()
    return Footprint(
        parameters=sum(p.nbytes for p in parameters),
        gradients=sum(g.nbytes for g in gradients),
        optimizer=sum(s.nbytes for s in state),
        segment=_segment_of(step.options),
        peak=live.peak,
        peaks=tuple(live.peaks.get(phase, 0) for phase in PHASES),
        **saved,
    )


@contextmanager
def _phases(stack: nn.Module, live: LiveBytes) -> Iterator[None]:
    """Tells `live` where a step stands, forward by the stack's module, backward by the gradients at its ends."""

    def enter(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        inputs[0].register_hook(lambda _: live.begin("around"))
        live.begin("stack forward")

    def leave(_: nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        outputs[0].register_hook(lambda _: live.begin("stack backward"))
        live.begin("head")

    hooks = stack.register_forward_pre_hook(enter), stack.register_forward_hook(leave)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _segment_of(options: StepOptions) -> int:
    stack = options.stack
    if stack.memory_policy != "recompute":
        return 0
    return segment_bytes(options, max(map(len, segments(stack.num_layers, stack.module_layers))))


@lru_cache(maxsize=256)
def segment_bytes(options: StepOptions, num_layers: int) -> int:
    """What so many layers in the middle of the stack keep; their input is kept already."""
    H = options.stack.hidden_size
    with FakeTensorMode():
        stack = RecurrentStack(H, replace(options.stack, num_layers=num_layers, memory_policy="save"))
        x = torch.empty(options.frames, options.batch_size, H, requires_grad=True)
        if options.precision != "32":
            x = x.detach().bfloat16().requires_grad_()
        lengths = torch.full((options.batch_size,), options.frames)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16-mixed"):
            return saved_bytes(
                lambda: stack(x.transpose(0, 1), lengths), [*stack.parameters(), *stack.buffers(), x, lengths]
            )
