"""The type of a setting in words: what may be given, for someone who does not read Python.

Literal["adamw", "sgd"]   adamw or sgd
int | None                a whole number or null
tuple[float, ...]         a list of numbers
"""

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

SINGLE: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "null",
}
SEVERAL = {int: "whole numbers", float: "numbers", str: "texts"}


def in_words(hint: Any) -> str:
    """What values of this type look like; a class is given by its path."""
    options = list(dict.fromkeys(_options(hint)))
    if "a number" in options and "a whole number" in options:
        options.remove("a whole number")
    return either(options)


def either(options: list[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(options[:-1])} or {options[-1]}" if options[1:] else options[0]


def _options(hint: Any) -> list[str]:
    if hint in SINGLE:
        return SINGLE[hint].split(" or ") if hint is bool else [SINGLE[hint]]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return [str(value) for value in inner]
    if origin in (Union, types.UnionType):
        found = [option for part in inner for option in _options(part)]
        return [*(option for option in found if option != "null"), *(["null"] if "null" in found else [])]
    if origin is tuple and Ellipsis not in inner:
        return [f"a list of {len(inner)} {SEVERAL.get(inner[0], 'values')}"]
    if origin in (tuple, list) or (origin is not None and hasattr(origin, "__iter__") and origin is not dict):
        return [f"a list of {SEVERAL.get(inner[0], 'classes') if inner else 'values'}"]
    if origin is dict or hint is dict:
        return ["a mapping"]
    return [f"a class_path ({getattr(hint, '__name__', hint)})"]
