"""A study card that trains on a spoken corpus in seconds, for the tests that go through the real commands."""

from pathlib import Path
from typing import Any

import yaml


def small_card(folder: Path, corpus: Path, **more: Any) -> Path:
    """Write `folder/card.yaml` over the manifests of `corpus`; `more` replaces whole sections."""
    content = {
        "name": "tiny",
        "trainer": {"accelerator": "cpu", "max_epochs": 1},
        "model": {
            "hidden_size": 8,
            "features": {"kind": "log_mel", "mel_bins": 20},
            "front_end": {"channels": 2, "first_kernel": [5, 5], "second_kernel": [5, 3]},
        },
        "data": {
            "root": str(corpus),
            "train_manifest": "train.jsonl",
            "val_manifest": "dev.jsonl",
            "test_manifest": "test.jsonl",
            "global_batch_size": 8,
            "per_device_batch_size": 8,
        },
        "wandb": {"mode": "disabled"},
        **more,
    }
    path = folder / "card.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
