"""Many command lines of `fit` to their resolved configs: all of a study, before the first run starts.

A process a point would cost five seconds each. The parser is built once, a further point takes 0.05 s of processor
time, and many of them are shared among the cores by processes forked from this one, which has imported everything.
What a user got wrong becomes one sentence that names the point.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

from experiments.cli import LIGHTNING
from experiments.many_runs.slots import usable_cores

Points = list[tuple[str, Sequence[str]]]
FEWEST_POINTS = 8  # that are worth a process
_PARSERS: dict[str, Any] = {}


def resolve(points: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """`{name: arguments after "fit"}` to `{name: resolved config}`, nothing instantiated, no folder touched.

    The config is that of the run itself (`TrainingCLI.plain_config`), so `identity` tells the same.
    Raises ValueError for the first point that does not parse: its name, the key, what is allowed.
    """
    named = list(points.items())
    if not named:
        return {}
    name, arguments = named[0]
    try:
        parser = parser_of("fit", list(arguments))
    except (ValueError, OSError) as error:
        raise _of_point(name, error) from error
    shares = _shares(named, usable_cores())
    context = multiprocessing.get_context("fork")
    answers = []
    for share in shares[1:]:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(parser, share, there), daemon=True)
        process.start()
        there.close()
        answers.append((process, here))
    found = _resolved(parser, shares[0])
    for process, answer in answers:
        told = answer.recv()
        process.join()
        if isinstance(told, ValueError):
            raise told
        found |= told
    return found


def _shares(points: Points, cores: int) -> list[Points]:
    """The points in their order, in as many equal parts as are worth it."""
    number = max(1, min(cores, len(points) // FEWEST_POINTS))
    bounds = [len(points) * part // number for part in range(number + 1)]
    return [points[first:last] for first, last in pairwise(bounds)]


def _answer(parser: Any, points: Points, connection: Connection) -> None:
    """In a process of its own: what `_resolved` returns or raises goes back."""
    try:
        connection.send(_resolved(parser, points))
    except ValueError as error:
        connection.send(error)


def _resolved(parser: Any, points: Points) -> dict[str, dict[str, Any]]:
    from experiments.arguments import plain
    from experiments.settings.reading import read_settings

    found = {}
    for name, arguments in points:
        try:
            settings = read_settings(parser, plain(list(arguments)))
        except (ValueError, OSError) as error:
            raise _of_point(name, error) from error
        # The arguments were validated when they were parsed.
        found[name] = dict(json.loads(parser.dump(settings, skip_none=False, skip_validation=True, format="json")))
    return found


def _of_point(name: str, error: Exception) -> ValueError:
    return ValueError(f"{name}: {' '.join(str(error).split())}")


def parser_of(command: str, arguments: list[str]) -> Any:
    """The parser of `fit`, `validate`, `test` or `predict`; `arguments`: some that the first of all can parse, since it
    must. Made once a process: it takes longer than ten points."""
    if command in _PARSERS:
        return _PARSERS[command]
    from experiments.training import TrainingCLI, quiet

    class ParsedOnly(TrainingCLI):
        """Stops short of making anything."""

        def instantiate_classes(self) -> None:
            """Nothing is made of a config that is only looked at."""

        def _run_subcommand(self, subcommand: str) -> None:
            """Nothing is trained."""

    quiet()
    cli = ParsedOnly(["fit", *arguments])
    _PARSERS.update((name, cli._parser(name)) for name in LIGHTNING)
    return _PARSERS[command]
