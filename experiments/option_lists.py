"""Lists on the command line, separated by commas, refused with a sentence that argparse prints."""

import argparse
from collections.abc import Callable


def integers(text: str) -> list[int]:
    """Whole numbers from 1."""
    values = counts(text)
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds a number below 1; sizes start at 1")
    return values


def counts(text: str) -> list[int]:
    """Whole numbers from 0."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a comma-separated list of whole numbers; write it as 1,2,4"
        ) from None
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} holds a number below 0")
    return values


def names(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Some of these names."""

    def parse(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown; choose from {', '.join(allowed)}")
        return found

    return parse
