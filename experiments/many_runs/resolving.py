"""Many command lines of `fit` to their resolved configs, in one process: all of a study, before the first run starts.

A process a point would cost five seconds each; the parser is built once and a further point takes 0.05 s of processor
time. What a user got wrong becomes one sentence that names the point.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def resolve(points: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """`{name: arguments after "fit"}` to `{name: resolved config}`, nothing instantiated, no folder touched.

    The config is that of the run itself (`TrainingCLI.plain_config`), so `identity` tells the same.
    Raises ValueError for the first point that does not parse: its name, the key, what is allowed.
    """
    from experiments.arguments import plain
    from experiments.settings.reading import read_settings

    parser = None
    found = {}
    for name, arguments in points.items():
        try:
            parser = parser or parser_of("fit", list(arguments))
            settings = read_settings(parser, plain(list(arguments)))
        except (ValueError, OSError) as error:
            raise ValueError(f"{name}: {' '.join(str(error).split())}") from error
        # The arguments were validated when they were parsed.
        found[name] = dict(json.loads(parser.dump(settings, skip_none=False, skip_validation=True, format="json")))
    return found


def parser_of(command: str, arguments: list[str]) -> Any:
    """The parser of `fit`, `validate`, `test` or `predict`; `arguments`: some that it can parse, since it must."""
    from experiments.training import TrainingCLI, quiet

    class ParsedOnly(TrainingCLI):
        """Stops short of making anything."""

        def instantiate_classes(self) -> None:
            """Nothing is made of a config that is only looked at."""

        def _run_subcommand(self, subcommand: str) -> None:
            """Nothing is trained."""

    quiet()
    return ParsedOnly(["fit", *arguments])._parser(command)
