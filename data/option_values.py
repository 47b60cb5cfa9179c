"""Numbers on the command line, refused with a sentence that argparse passes on."""

import argparse


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def count(text: str) -> int:
    """A whole number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a whole number from 0 to 65535")
    return value
