"""`PersistentRNN` beside `torch.nn.RNN` on this machine's CPU: forward + backward, both in one run.

Each measurement alternates the two layers, so that whatever else the machine does falls on both; a point reports
medians, the quartiles around them, and the median of the pairwise ratios (above 1: ours is faster). A point is timed
only after outputs and all gradients of the two layers have been found equal.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prnn_ext.module import PersistentRNN

Clock = Callable[[], float]


@dataclass(frozen=True)
class Point:
    """One size: milliseconds per forward + backward as (first quartile, median, third quartile)."""

    hidden_size: int
    batch_size: int
    time_steps: int
    ours_ms: tuple[float, float, float]
    torch_ms: tuple[float, float, float]
    ratio: float
    """Median over the pairs of torch's time / our time."""


def points(
    hidden_sizes: Sequence[int],
    batch_sizes: Sequence[int],
    time_steps: int,
    repeats: int,
    nonlinearity: str = "relu",
    clock: Clock = time.perf_counter,
) -> Iterator[Point]:
    """Time each size ``repeats`` times in float32; raises ``AssertionError`` where the two layers disagree.

    ``clock`` gives seconds: of the wall, or (`time.process_time`) of this process, which neighbours disturb less.
    """
    for hidden_size in hidden_sizes:
        for batch_size in batch_sizes:
            yield _point(hidden_size, batch_size, time_steps, repeats, nonlinearity, clock)


def _point(hidden_size: int, batch_size: int, time_steps: int, repeats: int, nonlinearity: str, clock: Clock) -> Point:
    torch.manual_seed(0)
    theirs = nn.RNN(hidden_size, hidden_size, nonlinearity=nonlinearity)
    ours = PersistentRNN(hidden_size, hidden_size, nonlinearity=nonlinearity)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(time_steps, batch_size, hidden_size, requires_grad=True)
    grad_output = torch.randn(time_steps, batch_size, hidden_size)
    for mine, other in zip(_step(ours, x, grad_output), _step(theirs, x, grad_output), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    pairs = [(_seconds(ours, x, grad_output, clock), _seconds(theirs, x, grad_output, clock)) for _ in range(repeats)]
    mine_s, other_s = zip(*pairs, strict=True)
    ratio = statistics.median(other / mine for mine, other in pairs)
    return Point(hidden_size, batch_size, time_steps, _quartiles(mine_s), _quartiles(other_s), ratio)


def _step(layer: nn.Module, x: Tensor, grad_output: Tensor) -> list[Tensor]:
    output, h_n = layer(x)
    gradients = torch.autograd.grad(output, [x, *layer.parameters()], grad_output)
    return [output, h_n, *gradients]


def _seconds(layer: nn.Module, x: Tensor, grad_output: Tensor, clock: Clock) -> float:
    started = clock()
    _step(layer, x, grad_output)
    return clock() - started


def _quartiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    first, median, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return first * 1e3, median * 1e3, third * 1e3
