"""A network of a thousand layers trains: steps of the modern recipe on one batch of noise, learnt by heart.

One batch needs no data and asks of depth what depth endangers (`experiments/depth/stability.py` has the small grid).
Features are normalised an utterance at a time, so that nothing has to be estimated first.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from experiments.memory.bare_step import BareStep, StepOptions
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.gradient_norm import GradientNorm
from models.recipe import Recipe
from models.stack import StackOptions


@dataclass(frozen=True)
class Training:
    """Losses in nats an utterance, one a step; `peak_bytes` of the allocator, None on a CPU."""

    num_layers: int
    hidden_size: int
    batch_size: int
    frames: int
    precision: str
    policy: str
    learning_rate: float
    losses: list[float]
    dropped_steps: int
    step_ms: float
    """The fastest step, CTC and the gradient's norm included."""
    peak_bytes: int | None

    @property
    def falls(self) -> bool:
        """Whether the mean loss of the last tenth of the steps is finite and below the first loss."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        mean = sum(last) / len(last)
        return math.isfinite(mean) and mean < self.losses[0]


def train(
    stack: StackOptions,
    batch_size: int,
    frames: int,
    precision: Any,
    steps: int,
    learning_rate: float,
    device: torch.device,
) -> Training:
    """Take the steps."""
    features, front_end = FeatureOptions("log_mel", normalization="utterance"), FrontEndOptions(4)
    options = StepOptions(stack, batch_size, frames, precision, features=features, front_end=front_end)
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = BareStep(options, device)
    recipe = Recipe(learning_rate=learning_rate)
    step.optimizer = recipe.optimizer_for(step.network)
    norm = GradientNorm(recipe.clip_norm, max_nonfinite_steps=steps + 1)
    losses: list[float] = []
    seconds = math.inf
    for _ in range(steps):
        begin = time.perf_counter()
        step.optimizer.zero_grad()
        loss = step.forward()
        loss.backward()
        if norm.apply(step.network.parameters()):
            step.optimizer.step()
        losses.append(loss.item())
        if gpu:
            torch.cuda.synchronize()
        seconds = min(seconds, time.perf_counter() - begin)
    return Training(
        stack.num_layers,
        stack.hidden_size,
        batch_size,
        frames,
        precision,
        stack.memory_policy,
        learning_rate,
        losses,
        norm.dropped,
        1e3 * seconds,
        torch.cuda.max_memory_allocated() if gpu else None,
    )
