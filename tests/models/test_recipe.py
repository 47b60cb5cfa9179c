"""Recipes: which parameters decay, how the learning rate moves, gradients that are clipped or dropped."""

import itertools
import math

import pytest
import torch
from torch import nn

from models.gradient_norm import GradientNorm, NonFiniteGradientsError, steps_on_the_device
from models.recipe import Recipe
from models.recognizer import Recognizer


def test_only_matrices_and_kernels_decay() -> None:
    with torch.device("meta"):
        model = Recognizer(num_layers=8, hidden_size=16)
    optimizer = Recipe(weight_decay=0.1).optimizer_for(model)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, p in model.named_parameters():
        matrix = name.endswith(("weight_ih", "weight_hh", "linear.weight")) or ("convolutions." in name and p.ndim == 4)
        assert decay[id(p)] == (0.1 if matrix else 0.0), name


def test_the_papers_recipe() -> None:
    recipe = Recipe(optimizer="sgd", schedule="per_epoch", learning_rate=6e-4, clip_norm=400)
    optimizer = recipe.optimizer_for(nn.Linear(2, 2))
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["nesterov"]
    assert optimizer.defaults["momentum"] == 0.99
    factors = [recipe.factor(0, 1, epoch) for epoch in range(3)]
    assert factors == pytest.approx([1, 1 / 1.2, 1 / 1.44])


def test_warm_up_then_cosine() -> None:
    recipe = Recipe(warmup_share=0.1, final_share=0.01)
    factors = [recipe.factor(step, 1000, 0) for step in range(1001)]
    assert 0 < factors[0] < 0.011
    assert factors[100] == pytest.approx(1, abs=1e-3)
    assert factors[1000] == pytest.approx(0.01)
    assert all(a <= b for a, b in itertools.pairwise(factors[:101]))
    assert all(a >= b for a, b in itertools.pairwise(factors[100:]))
    assert Recipe(schedule="constant").factor(500, 1000, 0) == 1
    assert all(0 < recipe.factor(step, total, 0) <= 1 for total in (1, 2, 5) for step in range(total + 1))


def test_a_schedule_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an end"):
        Recipe().optimization(nn.Linear(2, 2), math.inf)
    assert Recipe(schedule="per_epoch").optimization(nn.Linear(2, 2), math.inf)["lr_scheduler"]["interval"] == "epoch"


def test_gradients_are_rescaled_to_the_norm() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.grad, layer.bias.grad = torch.full((2, 3), 2.0), torch.full((2,), 1.0)
    norm = GradientNorm(1.0, 3)
    assert norm.apply(layer.parameters())
    assert norm.norm == pytest.approx(math.sqrt(26))
    torch.testing.assert_close(layer.weight.grad, torch.full((2, 3), 2 / math.sqrt(26)), rtol=1e-4, atol=0)
    assert norm.apply(layer.parameters())
    assert norm.norm == pytest.approx(1.0, rel=1e-4), "a short gradient stays as it is"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_dropped_step_moves_nothing(bad: float, optimizer: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    steps = Recipe(optimizer=optimizer).optimizer_for(layer)  # type: ignore[arg-type]
    norm = GradientNorm(1.0, 3)
    layer(torch.ones(1, 3)).sum().backward()
    norm.apply(layer.parameters())
    steps.step()
    before = [
        t.clone()
        for t in (*layer.parameters(), *(v for s in steps.state.values() for v in s.values() if v is not None))
    ]
    steps.zero_grad()
    layer(torch.ones(1, 3)).sum().backward()
    layer.weight.grad[0, 0] = bad
    assert not norm.apply(layer.parameters())
    steps.step()
    after = [*layer.parameters(), *(v for s in steps.state.values() for v in s.values() if v is not None)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert norm.dropped == norm.dropped_in_a_row == 1


def test_too_many_dropped_steps_in_a_row_end_training() -> None:
    layer = nn.Linear(3, 2)
    norm = GradientNorm(1.0, 3)

    def step(value: float) -> None:
        layer.weight.grad = torch.full((2, 3), value)
        norm.apply(layer.parameters())

    for value in (math.nan, math.nan, 1.0, math.nan, math.nan):
        step(value)
    with pytest.raises(NonFiniteGradientsError, match="3 optimiser steps in a row"):
        step(math.nan)
    assert norm.dropped == 5


@pytest.mark.parametrize("highest", [0.5, 100.0])
def test_a_fused_optimiser_takes_the_norm_and_the_decision(highest: float) -> None:
    """Left to the optimiser, a run of good, long and non-finite gradients moves parameters and state as on the host."""
    found = []
    for on_device in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        steps = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
        norm = GradientNorm(highest, 3)
        for value in (1.0, 30.0, math.nan, math.inf, 2.0):
            layer.weight.grad = torch.arange(6.0).view(2, 3) * value
            layer.bias.grad = torch.ones(2)
            if on_device:
                norm.leave_to(steps, layer.parameters())
            else:
                norm.apply(layer.parameters())
            steps.step()
            steps.zero_grad()
        assert (norm.dropped, norm.dropped_in_a_row) == (2, 0)
        assert norm.norm > 0
        state = [v for s in steps.state.values() for v in s.values()]
        found.append([*layer.parameters(), *state])
    for own, host in zip(*found, strict=True):
        torch.testing.assert_close(own, host, rtol=1e-4, atol=1e-6)


def test_what_was_left_to_the_optimiser_ends_training_one_step_late() -> None:
    layer = nn.Linear(3, 2)
    steps = torch.optim.AdamW(layer.parameters(), fused=True)
    norm = GradientNorm(1.0, 3)

    def step() -> None:
        layer.weight.grad = torch.full((2, 3), math.nan)
        norm.leave_to(steps, layer.parameters())
        steps.step()

    for _ in range(3):
        step()
    assert norm.state() == {"dropped": 3, "dropped_in_a_row": 3}
    with pytest.raises(NonFiniteGradientsError, match="3 optimiser steps in a row"):
        step()


def test_only_a_fused_optimiser_on_cuda_is_left_the_norm() -> None:
    layer = nn.Linear(3, 2)
    assert not steps_on_the_device(torch.optim.AdamW(layer.parameters(), fused=True))
    with torch.device("meta"):
        layer = nn.Linear(3, 2)
    assert not steps_on_the_device(Recipe(optimizer="sgd").optimizer_for(layer))
