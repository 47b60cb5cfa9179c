"""Every tensor that a module holds goes where the module goes: moved, or made within `with torch.device(...)`.

`meta`, where tensors have shapes and no values, stands for a GPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from experiments.memory.bare_step import BareStep, StepOptions
from experiments.whole_step.stack_step import StackStep
from models.ctc import CTCHead
from models.features import FeatureOptions, Features
from models.front_end import FrontEnd, FrontEndOptions
from models.recurrent_layer import RecurrentLayer
from models.row_convolution import RowConvolution
from models.stack import RecurrentStack, StackOptions

STACK = StackOptions(num_layers=4, hidden_size=16, activation="relu")
SMALL = FrontEndOptions(2, (5, 3), (2, 2), (3, 3))
MODULES: dict[str, Callable[[], nn.Module]] = {
    "log spectrogram": lambda: Features(FeatureOptions()),
    "log-mel": lambda: Features(FeatureOptions("log_mel")),
    "utterance's mean": lambda: Features(FeatureOptions("log_mel", normalization="utterance")),
    "front-end": lambda: FrontEnd(20, SMALL),
    "front-end without norm": lambda: FrontEnd(20, SMALL, "none"),
    "layer": lambda: RecurrentLayer(8, 16, "tanh", "batch"),
    "layer with bias": lambda: RecurrentLayer(8, 16, "tanh", "none"),
    "row convolution": lambda: RowConvolution(16, 3),
    "stack": lambda: RecurrentStack(8, STACK),
    "head": lambda: CTCHead(16, 29),
}


def tensors(thing: Any) -> Iterator[tuple[str, Tensor]]:
    """Of a module and those in it, or of another object and the modules it holds: registered or not, in containers
    too."""
    for holder in thing.modules() if isinstance(thing, nn.Module) else [thing]:
        for group, value in vars(holder).items():
            for name, part in value.items() if isinstance(value, dict) else [(group, value)]:
                if isinstance(part, nn.Module) and not isinstance(thing, nn.Module):
                    yield from tensors(part)
                leaves = tree_leaves(part)
                yield from ((f"{type(holder).__name__}.{name}", leaf) for leaf in leaves if isinstance(leaf, Tensor))


def elsewhere(thing: Any, device: str) -> set[str]:
    """Tensors that are not on `device`; there must be one that is."""
    found = list(tensors(thing))
    assert found
    return {name for name, tensor in found if tensor.device.type != device}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_moves_whole(name: str) -> None:
    assert not elsewhere(MODULES[name]().to("meta"), "meta")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_made_whole_where_the_context_says(name: str) -> None:
    with torch.device("meta"):
        module = MODULES[name]()
    assert not elsewhere(module, "meta")


def test_a_recogniser_moves_and_is_made_whole(recognizer: Callable[..., Any]) -> None:
    for options in ({}, {"features": FeatureOptions()}):
        assert not elsewhere(recognizer(**options).to("meta"), "meta")
        with torch.device("meta"):
            assert not elsewhere(recognizer(**options), "meta")


@pytest.mark.parametrize("ordinary", [False, True])
@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("kind", [BareStep, StackStep])
def test_a_step_is_made_whole_on_its_device(kind: Any, precision: Any, ordinary: bool) -> None:
    for features in (FeatureOptions(), FeatureOptions("log_mel")):
        options = StepOptions(STACK, 2, 40, precision, optimizer="sgd", features=features, front_end=SMALL)
        assert not elsewhere(kind(options, torch.device("meta"), ordinary), "meta")


def test_a_tensor_left_behind_is_seen() -> None:
    """These tests can fail."""
    module = RowConvolution(4, 1)
    module.shifts = [torch.zeros(1)]
    assert elsewhere(module.to("meta"), "meta") == {"RowConvolution.shifts"}
