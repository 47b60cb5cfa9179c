"""The checkpoint that `validate`, `test` and `predict` are given, beside the config they are given."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from experiments.run.folder import BEST, of_folder

# What neither the weights nor the outputs of an evaluation depend on.
INDIFFERENT = {
    "backend",
    "characters",
    "dropout",
    "initialization",
    "max_unalignable_share",
    "memory_policy",
    "recipe",
    "spec_augment",
    "statistics_batches",
}


def check_checkpoint(command: str, path: str | None, model: Mapping[str, Any]) -> None:
    """Raise ValueError where no checkpoint is named (untrained weights would be judged), where the file is none, and
    where it holds another network than the config's `model`."""
    import torch

    if path is None:
        raise ValueError(f"{command} needs a checkpoint; give --ckpt_path={BEST}")
    if not Path(path).is_file():
        remedy = of_folder(Path(path)) or f"give {BEST}"
        raise ValueError(f"--ckpt_path is {path}, which is no file; {remedy}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, UnpicklingError, EOFError, OSError) as error:
        raise ValueError(f"--ckpt_path is {path}, which is no checkpoint; give one that `fit` wrote") from error
    if not isinstance(content, dict) or not {"hyper_parameters", "state_dict"} <= set(content):
        raise ValueError(f"--ckpt_path is {path}, which holds no network; give a checkpoint that `fit` wrote")
    other = difference(content["hyper_parameters"], model)
    if other is not None:
        key, trained, said = other
        raise ValueError(
            f"--ckpt_path is {path}, whose model.{key} is {trained}, and the config says {said}; give --config "
            "runs/NAME/config.yaml of the same run"
        )


def difference(trained: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first key in which a trained network and a config differ, and both values; None where they agree."""
    for key in trained.keys() & said.keys() - INDIFFERENT:
        one, other = trained[key], said[key]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if (inner := difference(one, other)) is not None:
                return f"{key}.{inner[0]}", *inner[1:]
        elif _plain(one) != _plain(other):
            return key, one, other
    return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
