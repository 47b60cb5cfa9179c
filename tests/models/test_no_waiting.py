"""What waits for the device in a training step: nothing but CTC's lengths and the gradient's norm.

On a CPU nothing waits, so waits are known by the operators that make them: those that turn a tensor into a number, and
those whose result's shape depends on values.
"""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.recipe import Recipe

Make = Callable[..., Any]
UTTERANCES = [(9000, [1, 2, 3]), (16_000, [2, 2]), (4000, []), (400, [1] * 60)]
WAITING = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "index",
    "unique",
    "_unique2",
    "unique_consecutive",
    "repeat_interleave",
    "bincount",
}


class _Waits(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in WAITING and not (name == "index" and all(_is_integer(i) for i in args[1])):
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


def _is_integer(index: Any) -> bool:
    return index is None or index.dtype not in (torch.bool, torch.uint8)


@pytest.mark.parametrize("policy", ["save", "recompute"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_training_step_waits_for_the_gradients_norm_alone(
    recognizer: Make, batch: Make, policy: str, optimizer: str, precision: torch.dtype
) -> None:
    model = recognizer(recipe=Recipe(optimizer=optimizer, learning_rate=1e-4), memory_policy=policy, num_layers=3)  # type: ignore[arg-type]
    steps = model.recipe.optimizer_for(model)
    given, logged = batch(*UTTERANCES), []
    model._trainer = SimpleNamespace(world_size=1, accumulate_grad_batches=1)
    model.log = lambda name, value, **_: logged.append((name, value))
    model.train()

    def one() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = model.training_step(given, 0)
        loss.backward()
        model.gradient_norm.apply(model.parameters())
        steps.step()
        steps.zero_grad()

    one()  # what an optimiser makes at its first step is made
    with _Waits() as waits:
        one()
    assert waits.seen == {"_local_scalar_dense": 1}
    assert [name for name, _ in logged] == ["train/loss"] * 2
    assert all(isinstance(value, torch.Tensor) for _, value in logged), "a number was logged: it was waited for"
