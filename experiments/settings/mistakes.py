"""What is wrong with a command line of `fit`, in one sentence: what was given and where, what is allowed, what to do.

The parser (jsonargparse) judges; it says so in the types of Python and without the file. So keys are looked at before
it reads them, and what it then refuses is said again in words (`in_words.py`, `limits.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from experiments.settings.given import ALONE, COMMAND_LINE, MISSING, Given, last_of
from experiments.settings.in_words import either
from experiments.settings.known import Settings

# Settings of Lightning's that this project derives or makes itself: their defaults, and what to set instead. Any other
# value would go unheard.
OURS: dict[str, tuple[Any, str]] = {
    "trainer.accumulate_grad_batches": (1, "it follows from data.global_batch_size over the ranks; set that"),
    "trainer.gradient_clip_val": (None, "the recipe clips the gradient; set model.recipe.clip_norm"),
    "trainer.default_root_dir": (None, "a run has one folder; set --output"),
    "trainer.logger": (None, "a run writes metrics.jsonl and mirrors it to W&B; set wandb.mode"),
    "trainer.plugins": (None, "a run brings its own; take it out"),
    "trainer.enable_progress_bar": (None, "the bar is shown on a terminal alone; redirect the output to do without"),
    "trainer.overfit_batches": (0.0, "it would replace the order of the data; set trainer.limit_train_batches"),
}
_KEY = re.compile(r'[Kk]ey "([^"]+)"')
_NOT_ACCEPTED = re.compile(r"(?:does not accept option|Option) '([^']+)'")
# What people ask for by another name.
HINTS = {
    "ckpt_path": "`fit` finds its own checkpoint: name another with --resume",
    "lr": "did you mean --model.recipe.learning_rate?",
    "batch_size": "did you mean --data.global_batch_size or --data.per_device_batch_size?",
    "epochs": "did you mean --trainer.max_epochs?",
    "gpus": "did you mean --trainer.devices?",
}


def check_keys(settings: Settings, given: list[Given]) -> None:
    """Raise ValueError for the first key that is none, has no value, or is a section given as a value."""
    for one in given:
        if one.key in settings.flags:
            continue
        if one.key in settings.sections and one.key not in settings.hints:
            value = str(one.value)
            if one.key in settings.files and not one.of_file and (value.startswith("{") or Path(value).is_file()):
                continue
            inside = next(known for known in settings.hints if known.startswith(f"{one.key}."))
            what = "has nothing below it" if one.value in (None, {}, MISSING) else f"is {one.value}"
            raise ValueError(
                f"{one} {what}, and is a section of settings; give those, such as {inside}, or take it out"
            )
        if one.place == ALONE or not settings.takes(one.key):
            raise ValueError(_unknown(settings, one, given))
        if one.value is MISSING:
            allowed = settings.allowed(one.key) if one.key in settings.hints else "one"
            raise ValueError(f"{one} has no value; give {allowed}, as --{one.key}=VALUE")
        if one.value in (None, "null") and not settings.takes_null(one.key):
            raise ValueError(wrong_value(settings, one, one.key))


def _unknown(settings: Settings, one: Given, given: list[Given]) -> str:
    if one.of_file:
        heads = {g.key.split(".")[0] for g in given if g.of_file and g.file == one.file}
        if (study := study_of(heads)) is not None:
            return f"{one.file} is a card of `{study}`; say python -m experiments {study} --config {one.file}"
    key = one.key.partition("=")[0].lstrip("-")
    near = settings.close_to(key)
    if one.place == ALONE:
        shown = f"--{near[0]}=VALUE" if near else "--KEY=VALUE"
        return f"{one} stands alone on the command line; write a setting as {shown}, a card as --config FILE"
    dashes = "--" if one.place == COMMAND_LINE else ""
    meant = f"did you mean {either([dashes + name for name in near])}?" if near else "mend it, or take it out"
    return f"{one} is no setting; {HINTS.get(key, meant)} (--help=all lists all)"


def study_of(keys: set[str]) -> str | None:
    """The command whose card these top-level keys make: `plan`, `scaling`, or None."""
    from experiments.plan.command import DEFAULTS as PLAN
    from experiments.scaling.command import DEFAULTS as SCALING

    return next((name for name, known in (("plan", PLAN), ("scaling", SCALING)) if keys <= set(known)), None)


def refused(settings: Settings, given: list[Given], message: str) -> str:
    """The parser's own message about a value, said with the place and in words; as it is where no key is named."""
    found = _KEY.search(message) or _NOT_ACCEPTED.search(message)
    key = found[1].removeprefix("fit.") if found else ""
    one = last_of(given, key)
    if one is None or key not in settings.hints:
        return " ".join(message.split())
    return wrong_value(settings, one, key)


def wrong_value(settings: Settings, one: Given, key: str) -> str:
    """The sentence about a value that its key does not take."""
    said = "empty" if one.value == "" else "null" if one.value is None else str(one.value)
    said += ", which leads to another kind of value" if "${" in said else ""
    return f"{one} is {said}; give {settings.allowed(key)}"


def unresolved(settings: Settings, given: list[Given], key: str, message: str) -> str:
    """The sentence about `${...}` that leads nowhere."""
    one = last_of(given, key)
    if one is None:
        return " ".join(message.split())
    if "Environment variable" in message:
        name = message.split("'")[1]
        return f"{one} is {one.value}, and the environment has no {name}; set it, or write ${{oc.env:{name},DEFAULT}}"
    if "ecursi" in message:
        return f"{one} is {one.value}, which leads back to itself; write the value at one of them"
    target = found[1] if (found := re.search(r"\$\{([\w.]+)\}", str(one.value))) else ""
    near = settings.close_to(target) if target else []
    meant = f"did you mean {either([f'${{{name}}}' for name in near])}?" if near else "name a setting in the braces"
    return f"{one} is {one.value}, which leads to no setting; {meant}"


def of_trainer(message: str) -> str:
    """What Lightning's Trainer says of its own settings, with what to do where that is known."""
    if "No supported gpu backend" in message:
        return "trainer.accelerator is gpu and torch finds no GPU here; say --trainer.accelerator=cpu"
    return f"the trainer refuses its settings: {message}"
