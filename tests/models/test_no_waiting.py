"""What waits for the device in a training step: nothing but CTC and the gradient's norm.

On a CPU nothing waits, so waits are known by the operators that make them: those that turn a tensor into a number,
those whose result's shape depends on values, and copies between host and device that were not asked to go on. The last
need a device that is not the host: `meta`, and, for the forward pass alone, fake CUDA tensors, which need no GPU but
have no backward without one. What CTC waits for is measured on a GPU (`test_gpu.py`); here a sum stands for it.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models import batch_loss
from models.features import FeatureOptions
from models.recipe import Recipe
from models.spec_augment import SpecAugmentOptions

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
        self._made = _MadeOfValues(self.seen)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        reads = name in WAITING and not (name == "index" and all(_is_integer(i) for i in args[1]))
        if reads or _crosses(func, args, kwargs or {}, out):
            self.seen[name] += 1
        return out

    def __enter__(self) -> "_Waits":
        super().__enter__()
        self._made.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._made.__exit__(*exception)
        super().__exit__(*exception)


class _MadeOfValues(TorchFunctionMode):
    """Sees `torch.tensor([...], device=...)`, whose copy to the device is not dispatched."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("tensor", "new_tensor") and out.device.type != "cpu":
            self.seen["tensor"] += 1
        return out


def _crosses(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    """Whether it is a copy between host and device that has to end before the host goes on. One number, given as a
    0-dim CPU tensor to an operator on the device, travels as an argument of its kernel."""
    is_copy = func.__name__.split(".")[0] in ("copy_", "_to_copy", "_foreach_copy_")
    leaves = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
    names = [argument.name for argument in func._schema.arguments]
    goes_on = {**dict(zip(names, args, strict=False)), **kwargs}.get("non_blocking", False)
    return len({leaf.device.type for leaf in leaves if leaf.ndim or is_copy}) > 1 and not goes_on


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


def put(network: nn.Module, device: str) -> None:
    """On `device`, without values, tensor by tensor; `Module.to` refuses fake parameters."""
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(valueless(parameter, device))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = valueless(buffer, device)


def valueless(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """One like it on `device`."""
    return torch.empty_like(tensor.detach(), device=device)


@pytest.fixture(params=["meta", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device's name, within the mode that its tensors need."""
    if request.param == "meta":
        monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which meta has not
    # SpecAugment's draws are made on the host.
    with FakeTensorMode(allow_non_fake_inputs=True) if request.param == "cuda" else nullcontext():
        yield request.param


@pytest.mark.parametrize("normalization", ["batch", "none"])
@pytest.mark.parametrize("kind", ["log_mel", "log_spectrogram"])
def test_nothing_else_crosses_between_host_and_device(
    device: str, recognizer: Make, batch: Make, monkeypatch: pytest.MonkeyPatch, normalization: str, kind: str
) -> None:
    monkeypatch.setattr(batch_loss, "ctc_losses", lambda log_probs, *_: log_probs.sum((1, 2)))
    features = FeatureOptions(kind=kind, mel_bins=20)  # type: ignore[arg-type]
    options = {"features": features, "normalization": normalization, "spec_augment": SpecAugmentOptions()}
    with unset_fake_temporarily():
        model, given = recognizer(num_layers=5, skip_span=2, **options).train(), batch(*UTTERANCES)
    put(model, device)
    given = given._map(lambda tensor: valueless(tensor, device))
    with _Waits() as waits:
        total = model.losses(given).total
        if device == "meta":
            total.backward()
    assert total.device.type == device
    assert not waits.seen


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: torch.tensor([1.0, 2.0], device=x.device),
        lambda x: x + torch.ones(3).to(x.device),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: x.cpu(),
        lambda x: x.new_tensor([1.0]),
    ],
)
def test_a_copy_that_waits_is_seen(device: str, wait: Callable[[torch.Tensor], Any]) -> None:
    with _Waits() as waits:
        try:
            wait(torch.empty(3, device=device))
        except NotImplementedError:  # meta has nothing to copy, and says so
            return
    assert waits.seen


def test_a_copy_that_goes_on_is_not_a_wait(device: str) -> None:
    x = torch.empty(3, device=device)
    with _Waits() as waits:
        x += torch.ones(3).to(device, non_blocking=True)
        x.copy_(torch.ones(3), non_blocking=True)
        x *= torch.tensor(2.0)
        x.where(x > 0, 0.0)
    assert not waits.seen
