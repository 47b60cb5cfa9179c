"""`python -m experiments stability`: do networks of this depth start, and do they keep training?

Each network is trained on one batch of noise with random transcripts until it knows them by heart. That needs no data,
and asks of a stack only what depth endangers: finite signals, gradients that reach the first layer, a loss that falls.

* `learns`: over the last tenth of the steps the loss is below `LEARNT` of its first.
* `diverged`: steps with a gradient that is not finite, or a loss above twice its first.
* `stuck`: neither.

Depth, skip span (0 is none), initialisation and recipe are arguments; the paper's recipe is Nesterov momentum 0.99 with
the gradient's norm cut at 400. Its network of 48 layers without skips is reported as it comes out.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data.option_values import count
from experiments.devices import device_of
from experiments.option_lists import counts, integers, names

LEARNT = 0.9
LEAST_STEPS = 2
"""Whether a loss falls is seen at the second."""
RECIPES = ("modern", "paper")
PAPER_LEARNING_RATE = 6e-4
"""The highest of the paper's range."""


@dataclass(frozen=True)
class Outcome:
    """One network's training. `gradient_ratio`: norm of the first layer's gradient over the last's, at the start."""

    num_layers: int
    hidden_size: int
    skip_span: int | None
    initialization: str
    precision: str
    recipe: str
    steps: int
    first_loss: float
    last_loss: float
    gradient_ratio: float
    dropped_steps: int
    status: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--depths", type=integers, default=[8, 48, 88, 200], help="default: 8,48,88,200")
    parser.add_argument("--hidden-size", type=count, default=32)
    parser.add_argument("--skip-spans", type=counts, default=[4, 0], help="default: 4,0; 0 for none")
    parser.add_argument("--initializations", default="gaussian", help="comma-separated, see models/stack.py")
    parser.add_argument("--recipes", type=names(RECIPES), default=list(RECIPES), help=f"from {', '.join(RECIPES)}")
    parser.add_argument("--precision", choices=("32", "bf16-mixed", "bf16-true"), default="32")
    parser.add_argument("--batch-size", type=count, default=4)
    parser.add_argument("--frames", type=count, default=40, help="time steps of the stack (default: 40)")
    parser.add_argument(
        "--steps", type=count, default=100, help=f"optimiser steps, at least {LEAST_STEPS} (default: 100)"
    )
    parser.add_argument("--device", default=None, help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--output", type=Path, default=Path("runs/stability"), help="folder of stability.json")


def run(options: argparse.Namespace) -> int:
    """Train each network, print its outcome, write stability.json."""
    from experiments.run import provenance
    from experiments.run.result import write_atomically

    device = device_of(options.device)
    outcomes = []
    grid = itertools.product(options.depths, options.skip_spans, options.initializations.split(","), options.recipes)
    for depth, span, initialization, recipe in grid:
        network = {"num_layers": depth, "skip_span": span or None, "initialization": initialization}
        outcome = train(
            network | {"hidden_size": options.hidden_size},
            recipe,
            options.steps,
            options.batch_size,
            options.frames,
            options.precision,
            device,
        )
        outcomes.append(asdict(outcome))
        print(
            f"{depth} layers, skip span {span or 'none'}, {initialization}, {recipe} recipe, {options.precision}: "
            f"{outcome.status}; loss {outcome.first_loss:.4g} -> {outcome.last_loss:.4g} in {outcome.steps} steps, "
            f"gradient first/last layer {outcome.gradient_ratio:.2g}, {outcome.dropped_steps} steps dropped",
            flush=True,
        )
        options.output.mkdir(parents=True, exist_ok=True)
        record = {
            "device": provenance.device_name(device.type),
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "commit": provenance.commit(),
            "command": " ".join(["python -m experiments", *sys.argv[1:]]),
            **provenance.versions(),
            "rows": outcomes,
        }
        write_atomically(options.output / "stability.json", json.dumps(record, indent=1) + "\n")
    return 0


def train(
    network: dict[str, Any],
    recipe: str,
    steps: int,
    batch_size: int = 4,
    frames: int = 40,
    precision: Any = "32",
    device: Any = "cpu",
    report: Callable[[int, float], None] | None = None,
) -> Outcome:
    """Learn one batch by heart. `network` holds arguments of `StackOptions`; `report` hears step and loss.

    Raises ValueError for a recipe that is not one of `RECIPES`, and for fewer than `LEAST_STEPS`.
    """
    from experiments.memory.bare_step import BareStep, StepOptions
    from models.features import FeatureOptions
    from models.front_end import FrontEndOptions
    from models.gradient_norm import GradientNorm
    from models.recipe import Recipe
    from models.stack import StackOptions

    if recipe not in RECIPES:
        raise ValueError(f"recipe {recipe!r} was given; it is one of {', '.join(RECIPES)}.")
    if steps < LEAST_STEPS:
        raise ValueError(
            f"--steps is {steps}; give at least {LEAST_STEPS}: a network learns where its loss falls below its first"
        )
    chosen = Recipe(learning_rate=1e-3)
    if recipe == "paper":
        chosen = Recipe(optimizer="sgd", learning_rate=PAPER_LEARNING_RATE, clip_norm=400.0)
    features, front_end = FeatureOptions("log_mel", normalization="utterance"), FrontEndOptions(4)
    stack = StackOptions(**network)
    options = StepOptions(stack, batch_size, frames, precision, features=features, front_end=front_end)
    step = BareStep(options, device)
    step.optimizer = chosen.optimizer_for(step.network)
    norm = GradientNorm(chosen.clip_norm, max_nonfinite_steps=steps + 1)
    losses: list[float] = []
    ratio = math.nan
    for i in range(steps):
        loss = step.forward()
        loss.backward()
        losses.append(loss.item())
        if i == 0:
            layers: Any = step.network.stack.layers
            first, last = (layers[k].weight_hh.grad.float().norm() for k in (0, -1))
            ratio = (first / last).item()
        if norm.apply(step.network.parameters()):
            step.optimizer.step()
        step.optimizer.zero_grad()
        if report:
            report(i, losses[-1])
    last_loss = statistics.median(losses[-max(1, steps // 10) :])
    bad = norm.dropped > 0 or not math.isfinite(last_loss) or last_loss > 2 * losses[0]
    status = "diverged" if bad else "learns" if last_loss < LEARNT * losses[0] else "stuck"
    return Outcome(
        stack.num_layers,
        stack.hidden_size,
        stack.skip_span,
        stack.initialization,
        precision,
        recipe,
        steps,
        losses[0],
        last_loss,
        ratio,
        norm.dropped,
        status,
    )
