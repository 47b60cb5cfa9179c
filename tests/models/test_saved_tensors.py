"""Saved bytes: distinct storages, without what lives anyway."""

import weakref

import torch
from torch import nn

from models.saved_tensors import saved_by_part, saved_bytes


def test_a_linear_layer_saves_its_input() -> None:
    layer = nn.Linear(8, 4)
    x = torch.randn(10, 8)
    assert saved_bytes(lambda: layer(x), layer.parameters()) == 10 * 8 * 4
    assert saved_bytes(lambda: layer(x), [*layer.parameters(), x]) == 0


def test_views_of_one_storage_count_once_at_its_full_size() -> None:
    x = torch.randn(10, 8, requires_grad=True)
    assert saved_bytes(lambda: x[2:].square() + x[:3].square().sum()) == 10 * 8 * 4


def test_freed_storages_are_not_mistaken_for_each_other() -> None:
    x = torch.randn(1000, requires_grad=True)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(5):
            y = y.exp()
        return y

    assert saved_bytes(chain) == 5 * 4000


def test_nothing_that_was_saved_outlives_the_count() -> None:
    layer, seen = nn.Linear(8, 8), []

    def saving() -> torch.Tensor:
        y = layer(torch.randn(10, 8)).exp()  # exp saves its own result
        seen.append(weakref.ref(y.untyped_storage()))
        return y.square()

    assert saved_by_part(saving, {"layer": layer}, layer.parameters()) == {"layer": 0, "rest": 640}
    assert seen[0]() is None
