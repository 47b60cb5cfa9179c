"""A card for commands that are no training: a YAML file of the command's own options, its question on top.

    # Question, expected number and source, cost, command
    num_layers: 88
    interconnect: ib-hdr

Options on the command line win over the card, and the card over the defaults. A card's values pass through the same
parser as options do, so both meet the same checks; a key that is no option of the command is an error.
"""

import argparse
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data.one_sentence_parser import OneSentenceParser
from data.option_values import count, positive
from experiments.option_lists import integers
from experiments.settings.yaml_file import read_yaml

__all__ = ["add_card_argument", "count", "positive", "settled", "whole_numbers"]

TRAINING = {"include", "model", "data", "trainer", "synth"}  # keys of a card of `fit`


def add_card_argument(parser: argparse.ArgumentParser) -> None:
    """`--config FILE`."""
    parser.add_argument("--config", type=Path, help="a card: YAML of these options; options given here win over it")


def settled(
    options: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    defaults: Mapping[str, Any],
) -> argparse.Namespace:
    """Defaults, then the card, then what was typed. The parser's own defaults must be `argparse.SUPPRESS`.

    The result's `untouched` names the options left at their defaults. Raises ValueError for a card that is missing, is
    not YAML, or names what is not an option.
    """
    path: Path | None = getattr(options, "config", None)
    card = {} if path is None else vars(_read(path, add_arguments))
    given = {**card, **vars(options)}
    return argparse.Namespace(**{"config": None, **defaults, **given}, untouched=frozenset(defaults) - set(given))


def _read(path: Path, add_arguments: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    card = read_yaml(path)
    if TRAINING & set(card.content):
        raise ValueError(f"{path} is a card of a training; say python -m experiments fit --config {path}")
    parser = OneSentenceParser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_arguments(parser)
    known = {action.dest for action in parser._actions} - {"help", "config"}
    for key in card.content:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            meant = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(sorted(known))}"
            raise ValueError(f"{card.place(key)}: {key} is no option; {meant}")
    found: dict[str, Any] = {}
    for key, value in card.content.items():
        if value is None or value is False:
            continue
        option = f"--{key.replace('_', '-')}"
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        try:
            found |= vars(parser.parse_args([option if value is True else f"{option}={text}"]))
        except ValueError as error:
            raise ValueError(f"{card.place(key)}: {error}") from None
    return argparse.Namespace(**{key: value for key, value in found.items() if key != "config"})


def whole_numbers(text: str) -> list[int]:
    """`1,2,4` as an ascending list of numbers from 1 on, each once."""
    return sorted(set(integers(text)))
