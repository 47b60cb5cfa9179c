"""What fits: the largest depth and mini-batch for a GPU's memory, and a sentence where a configuration does not.

A traced step (`prediction`) is exact and takes seconds at a hundred layers, so depths and batches in between are
computed from four small ones. In each phase of a step (forward and backward of the stack, what lies before and behind
it) memory is affine in the depth and in the batch; the peak is the highest of the phases, and which of them decides may
change with the size. Under `recompute` the stack keeps one tensor [T,B,H] a segment boundary, and in its backward one
segment more.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from experiments.memory.bare_step import StepOptions
from experiments.memory.prediction import PHASES, WORKSPACE, predict, segment_bytes
from models.front_end import FrontEndOptions
from models.memory_policy import MemoryPolicy, segments
from models.stack import skip_spans

if TYPE_CHECKING:
    from models.recognizer import Recognizer

GIB = 2**30
MOST_LAYERS, MOST_UTTERANCES = 1 << 16, 1 << 16
_BATCHES = (2, 4)


class DoesNotFitError(ValueError):
    """A configuration needs more memory than there is; the message says how much, and what to change."""


class Fit:
    """Peak bytes on CUDA of one network, batch and policy, by depth and mini-batch."""

    def __init__(self, options: StepOptions) -> None:
        self.options = options
        stack = options.stack
        unit = math.lcm(stack.module_layers, stack.skip_span or 1)
        self._depths = (2 * unit, 4 * unit)
        self._probes = {
            (depth, batch): predict(_with(options, depth, batch, "save"))
            for depth in self._depths
            for batch in _BATCHES
        }

    def peak(self, num_layers: int, batch_size: int, policy: MemoryPolicy | None = None) -> int:
        """Bytes, `WORKSPACE` included."""
        policy = policy or self.options.stack.memory_policy
        around, forward, head, backward = (
            self._at(num_layers, batch_size, lambda probe, i=i: probe.peaks[i]) for i in range(len(PHASES))
        )
        if policy != "save":
            stack = self._at(num_layers, batch_size, lambda probe: probe.stack)
            between, within = self._kept(num_layers, batch_size, policy)
            forward, head, backward = (peak - stack + between for peak in (forward, head, backward))
            backward += within
        return round(max(around, forward, head, backward)) + WORKSPACE

    def _kept(self, num_layers: int, batch_size: int, policy: MemoryPolicy) -> tuple[int, int]:
        """Bytes of the stack that stay on the device, and those that its backward needs more at a time."""
        if policy == "offload":
            # The tensors of about one layer are on their way.
            return 4 * self._tensor(batch_size), 0
        cut = segments(num_layers, self.options.stack.module_layers)
        longest = max(map(len, cut))
        low, high = (segment_bytes(_with(self.options, longest, batch, "save"), longest) for batch in _BATCHES)
        segment = low + (high - low) * (batch_size - _BATCHES[0]) // (_BATCHES[1] - _BATCHES[0])
        # A skip that is open across a boundary is kept with it.
        spans = skip_spans(num_layers, self.options.stack.skip_span, same_width=False)
        ends = [part.start - 1 for part in cut[1:]]
        open_skips = sum(begin < end < last for end in ends for last, begin in spans.items())
        # What the segment gave is there twice while it runs again.
        return (len(ends) + open_skips) * self._tensor(batch_size), segment + self._tensor(batch_size)

    def largest_depth(self, available: int, batch_size: int | None = None, policy: MemoryPolicy | None = None) -> int:
        """Layers, in whole modules, that fit into `available` bytes; 0 if not even one module does."""
        batch, unit = batch_size or self.options.batch_size, self.options.stack.module_layers
        return unit * _largest(lambda n: self.peak(n * unit, batch, policy) <= available, MOST_LAYERS // unit)

    def largest_batch(self, available: int, num_layers: int | None = None, policy: MemoryPolicy | None = None) -> int:
        """Utterances of this length that fit into `available` bytes; 0 if not even one does."""
        depth = num_layers or self.options.stack.num_layers
        return _largest(lambda n: self.peak(depth, n, policy) <= available, MOST_UTTERANCES)

    def _tensor(self, batch_size: int) -> int:
        return self.options.tensor_bytes // self.options.batch_size * batch_size

    def _at(self, num_layers: int, batch_size: int, read: Callable[..., int]) -> float:
        """A probe's number, bilinear in depth and batch."""
        (d1, d2), (b1, b2) = self._depths, _BATCHES
        depth, batch = (num_layers - d1) / (d2 - d1), (batch_size - b1) / (b2 - b1)
        at = {key: read(probe) for key, probe in self._probes.items()}
        low = at[d1, b1] + (at[d2, b1] - at[d1, b1]) * depth
        high = at[d1, b2] + (at[d2, b2] - at[d1, b2]) * depth
        return low + (high - low) * batch


def check_fits(options: StepOptions, available: int, device: str = "the GPU") -> int:
    """The predicted peak in bytes. Raises DoesNotFitError when it is more than `available`."""
    peak = predict(options).peak + WORKSPACE
    if peak > available:
        raise DoesNotFitError(advice(options, available, device))
    return peak


def advice(options: StepOptions, available: int, device: str = "the GPU") -> str:
    """What the step needs, what there is, and what to change: one sentence."""
    fit, stack = Fit(options), options.stack
    peak = predict(options).peak + WORKSPACE
    ways = []
    if stack.memory_policy != "recompute":
        recomputed = fit.peak(stack.num_layers, options.batch_size, "recompute")
        if recomputed <= available:
            ways.append(f"memory_policy recompute ({recomputed / GIB:.1f} GiB)")
    if batch := fit.largest_batch(available):
        ways.append(f"a per-device batch of {batch}")
    if depth := fit.largest_depth(available):
        ways.append(f"num_layers {depth}")
    return (
        f"{stack.num_layers} layers x {stack.hidden_size} units at a mini-batch of {options.batch_size} x "
        f"{options.frames} frames ({options.precision}, memory_policy {stack.memory_policy}) need {peak / GIB:.1f} GiB "
        f"and {device} has {available / GIB:.1f}; "
        + (f"choose one of: {', '.join(ways)}." if ways else "lower hidden_size or the longest utterance.")
    )


def step_of(recognizer: "Recognizer", batch_size: int, samples: int, precision: str) -> StepOptions:
    """A recogniser's step on a batch of so many utterances of so many samples; `precision` as the trainer names it."""
    network = recognizer.network
    frames = int(network.output_lengths(torch.tensor([samples]))[0])
    groups = recognizer.hparams["front_end"]
    return StepOptions(
        stack=network.stack.options,
        batch_size=batch_size,
        frames=frames,
        precision="bf16-true"
        if "true" in precision and "16" in precision
        else "bf16-mixed"
        if "16" in precision
        else "32",
        optimizer=recognizer.recipe.optimizer,
        features=network.features.options,
        front_end=FrontEndOptions(**groups),
        num_tokens=len(recognizer.vocabulary),
    )


def _with(options: StepOptions, num_layers: int, batch_size: int, policy: MemoryPolicy) -> StepOptions:
    stack = replace(options.stack, num_layers=num_layers, memory_policy=policy)
    return replace(options, stack=stack, batch_size=batch_size)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n in 0..most that fits, all below fitting too."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
