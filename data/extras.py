"""Packages that a command may need and an installation may lack: `pyproject.toml`'s extras, by the names of imports."""

# Of the extra `study`, those that are imported; the others come with them.
_STUDY = (
    *("aiohttp", "altair", "jaxtyping", "jinja2", "jsonargparse", "numpy", "omegaconf", "pytorch_lightning"),
    *("rapidfuzz", "rich", "soundfile", "torchaudio", "vl_convert", "wandb", "wandb_workspaces", "yaml"),
)
EXTRAS = dict.fromkeys(_STUDY, "study") | {
    "espeakng_loader": "synth",
    "fsspec": "index",
    "lhotse": "lhotse",
    "optuna": "bayes",
    "pyarrow": "index",
    "sentencepiece": "units",
}


def missing_package(error: ImportError) -> str:
    """The sentence for a package that is not installed: which one, and how to get it."""
    package = (error.name or str(error)).partition(".")[0]
    wanted = f"'.[{EXTRAS[package]}]'" if package in EXTRAS else package
    return f"{package} is not installed; say pip install {wanted} in the repository's folder."
