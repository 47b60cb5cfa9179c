"""What was set, and where: every key of the cards and options of a command line, in the order in which later wins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from experiments.settings.yaml_file import read_yaml

COMMAND_LINE, ALONE = "the command line", "a word of the command line without a key"
INLINE = "--config '{...}'"
MISSING = object()
_LINK = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Given:
    """`key` was set to `value` at `place`: `file:line`, or the command line, where `MISSING` stands for no value."""

    key: str
    value: Any
    place: str

    @property
    def of_file(self) -> bool:
        """Whether a file says it."""
        return self.place not in (COMMAND_LINE, ALONE, INLINE)

    @property
    def file(self) -> str:
        """That file."""
        return self.place.rpartition(":")[0]

    def __str__(self) -> str:
        """`--key` of the command line, or `file:line: key`."""
        if self.place in (COMMAND_LINE, ALONE):
            return self.key if self.place == ALONE or self.key.startswith("-") else f"--{self.key}"
        return f"{self.place}: {self.key}"


def all_given(arguments: list[str]) -> list[Given]:
    """Of a command line that `arguments.plain` made. Raises ValueError for a file or inline JSON that is none."""
    given: list[Given] = []
    for place, content, lines in _files(arguments):
        for key, value in _leaves(content, ""):
            given.append(Given(key, value, f"{place}:{lines[key]}" if lines else place))
    rest = iter([a for a in arguments if not a.startswith("--config=")])
    waiting: str | None = None
    for argument in rest:
        if waiting is not None and not argument.startswith("--"):
            given.append(Given(waiting, argument, COMMAND_LINE))
            waiting = None
            continue
        if waiting is not None:
            given.append(Given(waiting, MISSING, COMMAND_LINE))
            waiting = None
        if not argument.startswith("-"):
            given.append(Given(argument, MISSING, ALONE))
            continue
        key, equals, value = argument.removeprefix("--").partition("=")
        if equals:
            given.append(Given(key, value, COMMAND_LINE))
        else:
            waiting = key
    return given if waiting is None else [*given, Given(waiting, MISSING, COMMAND_LINE)]


def last_of(given: list[Given], key: str) -> Given | None:
    """Who set a key last, or what it is part of."""
    return next((g for g in reversed(given) if g.key == key or key.startswith(f"{g.key}.")), None)


def origin_of(given: list[Given], key: str) -> Given | None:
    """Who set a key last, or, where that is `${...}` alone, the key to which it leads."""
    last = last_of(given, key)
    link = _LINK.fullmatch(str(last.value)) if last is not None else None
    return (link and last_of(given, link[1])) or last


def _files(arguments: list[str]) -> Iterator[tuple[str, dict[str, Any], dict[str, int]]]:
    for argument in arguments:
        if not argument.startswith("--config="):
            continue
        file = argument.removeprefix("--config=")
        if not file.lstrip().startswith("{"):
            read = read_yaml(file)
            yield str(read.path), read.content, read.keys
            continue
        try:
            yield INLINE, yaml.safe_load(file), {}
        except yaml.YAMLError as error:
            raise ValueError(
                f"--config {file} is not JSON; write it as --config '{{\"model.num_layers\": 8}}'"
            ) from error


def _leaves(content: dict[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield above + name, value
