"""Depth and trainability: shallow and deep stacks learn a batch; what a study reports of one that does not."""

import math

import pytest
import torch

from experiments.depth.stability import train


@pytest.mark.slow
@pytest.mark.parametrize("depth", [8, 40])
def test_a_stack_starts_and_learns(depth):
    outcome = train({"num_layers": depth, "hidden_size": 32}, "modern", steps=12, batch_size=2, frames=24)
    assert outcome.status == "learns"
    assert outcome.last_loss < 0.9 * outcome.first_loss
    assert 1e-3 < outcome.gradient_ratio < 1e3


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "precision"), [(200, "32"), (200, "bf16-mixed"), (1000, "32")])
def test_a_very_deep_stack_starts_and_keeps_training(depth, precision):
    losses = []
    steps = 12 if depth == 1000 else 30
    outcome = train(
        {"num_layers": depth, "hidden_size": 32, "memory_policy": "recompute" if depth == 1000 else "save"},
        "modern",
        steps,
        batch_size=2,
        frames=20,
        precision=precision,
        report=lambda step, loss: losses.append(loss),
    )
    assert outcome.dropped_steps == 0
    assert all(math.isfinite(loss) for loss in losses)
    assert outcome.status == "learns"


def test_a_network_that_explodes_is_called_diverged(monkeypatch):
    from experiments.memory.bare_step import BareStep

    def explode(self):
        loss = original(self)
        return loss * torch.inf

    original = BareStep.forward
    monkeypatch.setattr(BareStep, "forward", explode)
    outcome = train({"num_layers": 1, "hidden_size": 8}, "paper", steps=2, batch_size=1, frames=20)
    assert (outcome.status, outcome.dropped_steps) == ("diverged", 2)


def test_a_recipe_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="recipe 'old' was given"):
        train({"num_layers": 1, "hidden_size": 8}, "old", steps=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--steps=1", "--steps is 1; give at least 2"),
        ("--steps=0", "--steps: '0' is not a whole number of 1 or more"),
        ("--steps=-3", "--steps: '-3' is not a whole number"),
        ("--hidden-size=0", "--hidden-size: '0' is not a whole number"),
        ("--batch-size=0", "--batch-size: '0' is not a whole number"),
        ("--frames=0", "--frames: '0' is not a whole number"),
        ("--depths=0", "--depths: '0' holds a number below 1"),
        ("--device=gpu", "--device gpu is no device"),
    ],
)
def test_a_number_that_leaves_nothing_to_judge_is_refused(given, said, tmp_path, capsys):
    from experiments.cli import main

    assert main(["stability", "--depths=1", given, f"--output={tmp_path / 'out'}"]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert said in line
    assert printed.out == ""
    assert not (tmp_path / "out").exists()
