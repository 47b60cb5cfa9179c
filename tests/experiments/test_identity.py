"""The identity of a run: the whole resolved config less what cannot change its numbers."""

from copy import deepcopy
from typing import Any

import pytest

from experiments.run.identity import RUN_ONLY, identity

CONFIG: dict[str, Any] = {
    "seed_everything": 0,
    "name": "demo",
    "output": None,
    "corpora": "/data/corpora",
    "resume": "auto",
    "synth": {"output": None, "hours": 0.5},
    "wandb": {"mode": None, "project": "p"},
    "trainer": {"devices": 1, "max_epochs": 20, "precision": "32-true", "logger": None, "default_root_dir": None},
    "model": {"num_layers": 8, "recipe": {"learning_rate": 0.001}},
    "data": {"root": "/data/corpora", "train_manifest": "an4/train.jsonl", "num_workers": 0, "global_batch_size": 32},
}


def changed(key: str, value: Any) -> dict[str, Any]:
    config = deepcopy(CONFIG)
    *parents, last = key.split(".")
    node = config
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value
    return config


@pytest.mark.parametrize("key", sorted(RUN_ONLY))
def test_what_cannot_change_the_numbers_does_not_change_the_identity(key: str) -> None:
    assert identity(changed(key, "another")) == identity(CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed_everything", 1),
        ("model.num_layers", 9),
        ("model.recipe.learning_rate", 0.002),
        ("trainer.precision", "bf16-mixed"),
        ("data.train_manifest", "fsdd/train.jsonl"),
        ("data.global_batch_size", 64),
        ("model.a_new_argument", None),
    ],
)
def test_everything_else_does(key: str, value: Any) -> None:
    assert identity(changed(key, value)) != identity(CONFIG)


def test_a_corpus_is_named_relative_to_the_root() -> None:
    here = changed("data.train_manifest", "/data/corpora/an4/train.jsonl")
    there = deepcopy(here) | {"corpora": "/other/place/"}
    there["data"]["train_manifest"] = "/other/place/an4/train.jsonl"
    assert identity(here) == identity(there) == identity(CONFIG)


def test_the_order_of_keys_is_nothing() -> None:
    def reordered(value: Any) -> Any:
        return {key: reordered(value[key]) for key in reversed(value)} if isinstance(value, dict) else value

    assert list(reordered(CONFIG)) != list(CONFIG)
    assert identity(reordered(CONFIG)) == identity(CONFIG)
    assert len(identity(CONFIG)) == 64


def test_one_learning_rate_has_one_identity() -> None:
    assert identity(changed("model.recipe.learning_rate", 1.0)) == identity(changed("model.recipe.learning_rate", 1))
