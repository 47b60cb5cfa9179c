"""Which run is this? The SHA-256 of the resolved config, less what cannot change its numbers.

The whole resolved config counts, not its difference from defaults: a changed default is another run. Left out are
paths, workers, loggers, devices and output; the commit, backend and plan are recorded beside the hash, not in it.
Corpora are named relative to their root (`corpora`), so a study has one identity on a laptop and on a cluster.
"""

import hashlib
import json
from pathlib import PurePath
from typing import Any

# Dotted keys of one command's config; a key stands for everything below it.
RUN_ONLY = frozenset(
    {
        "config",
        "include",
        "name",
        "output",
        "corpora",
        "resume",
        "reuse_commit",
        "threads",
        "checkpoint_minutes",
        "wandb",
        "ckpt_path",
        "weights_only",
        "return_predictions",
        "verbose",
        "data.num_workers",
        "data.root",
        "data.cache_audio_seconds",
        "synth.output",
        "trainer.accelerator",
        "trainer.strategy",
        "trainer.devices",
        "trainer.num_nodes",
        "trainer.logger",
        "trainer.plugins",
        "trainer.profiler",
        "trainer.default_root_dir",
        "trainer.log_every_n_steps",
        "trainer.enable_progress_bar",
        "trainer.enable_model_summary",
        "trainer.enable_checkpointing",
        "trainer.model_registry",
    }
)


def identity(config: dict[str, Any]) -> str:
    """64 hex digits for a resolved config of `fit` (nested dicts, lists and scalars)."""
    root = config.get("corpora")
    canonical = _canonical(config, "", None if root is None else str(root).rstrip("/"))
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any, key: str, root: str | None) -> Any:
    if isinstance(value, dict):
        below = {name: f"{key}.{name}" if key else str(name) for name in value}
        return {name: _canonical(value[name], path, root) for name, path in below.items() if path not in RUN_ONLY}
    if isinstance(value, list | tuple):
        return [_canonical(item, key, root) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 and 1 are one learning rate
    if isinstance(value, str | PurePath):
        text = str(value)
        return text.removeprefix(f"{root}/") if root else text
    return value
