"""A command line of `fit` and its like, read: the parser's namespace, or one sentence about what is wrong."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentError
from omegaconf.errors import OmegaConfBaseException

from experiments.arguments import BASE
from experiments.settings.checkpoint import check_checkpoint
from experiments.settings.given import Given, all_given, last_of, origin_of
from experiments.settings.known import Settings
from experiments.settings.limits import FORMS, LIMITS, malformed, outside
from experiments.settings.mistakes import OURS, check_keys, refused, unresolved, wrong_value


def read_settings(parser: Any, arguments: list[str], below: str | None = None) -> Any:
    """`parser.parse_args(arguments)`; with `below`, the settings are those of that subcommand, its name put first.

    `arguments` as `arguments.plain` leaves them. Raises ValueError: what was given and where, what is allowed, what to
    do.
    """
    command = parser if below is None else parser._subcommands_action._name_parser_map[below]
    settings = Settings(command)
    given = all_given([f"--config={BASE}", *arguments])
    check_keys(settings, given)
    try:
        config = parser.parse_args(arguments if below is None else [below, *arguments])
    except ArgumentError as error:
        raise ValueError(refused(settings, given, error.message or str(error))) from error
    except OmegaConfBaseException as error:
        key = str(error.full_key or "").removeprefix(f"{below}.")
        raise ValueError(unresolved(settings, given, key, str(error.msg or error))) from error
    check_values(settings, given, config if below is None else config[below])
    if below in ("validate", "test", "predict"):
        check_checkpoint(below, config[below].get("ckpt_path"), config[below].as_dict()["model"])
    return config


def check_values(settings: Settings, given: list[Given], config: Any) -> None:
    """Raise ValueError for the first number that is past its limit, and for what is set but would go unheard."""
    for key in (*LIMITS, *FORMS):
        value = config.get(key)
        if malformed(key, value) if key in FORMS else outside(key, value):
            raise ValueError(wrong_value(settings, origin_of(given, key) or Given(key, value, "the defaults"), key))
    for key, (default, remedy) in OURS.items():
        one = last_of(given, key)
        if one is not None and config.get(key) != default:
            raise ValueError(f"{one} is {one.value}, but {remedy}")
