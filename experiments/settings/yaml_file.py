"""A YAML file as what it says and where: its content, and the line of each key.

    model:
      num_layers: 8          keys: {"model": 1, "model.num_layers": 2}

Whatever keeps it from being a card is refused here, in one sentence with file and line: no file, not text, not YAML, no
keys, a key twice (YAML would take the second in silence).
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class YamlFile:
    """`keys`: each key with its dots, above and below, and its line from 1; `content` as YAML reads it."""

    path: Path
    content: dict[str, Any]
    keys: dict[str, int]

    def place(self, key: str) -> str:
        """`file:line` of a key."""
        return f"{self.path}:{self.keys[key]}"


def read_yaml(path: str | Path) -> YamlFile:
    """Read a card. Raises ValueError with file and line where it is none."""
    path = shown(Path(path))
    return _parsed(path, _text(path))


@lru_cache(maxsize=64)
def _parsed(path: Path, text: str) -> YamlFile:
    """Kept, because all points of a grid read the same cards; nobody writes into `content`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(_syntax(path, error)) from error
    if root is None:
        raise ValueError(f"{path} is empty; write lines `key: value`, as experiments/configs/fsdd.yaml does")
    if not isinstance(root, yaml.MappingNode):
        what = "a list" if isinstance(root, yaml.SequenceNode) else f"{text.strip()[:40]!r} alone"
        raise ValueError(f"{path} holds {what}; write lines `key: value`, as experiments/configs/fsdd.yaml does")
    keys: dict[str, int] = {}
    for key, line in _keys(path, root, ""):
        keys[key] = line
    return YamlFile(path, content, keys)


def shown(path: Path) -> Path:
    """The path as a reader knows it: from the current folder where it lies in it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _text(path: Path) -> str:
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a YAML file in it")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = sorted(p.stem for p in path.parent.glob("*.yaml"))
        meant = difflib.get_close_matches(path.stem, near, n=1, cutoff=0.6)
        remedy = f"did you mean {path.parent / meant[0]}.yaml?" if meant else "check the path"
        raise ValueError(f"{path} is no file; {remedy}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}); name a YAML file") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from error


def _syntax(path: Path, error: yaml.YAMLError) -> str:
    mark, began = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "characters that YAML forbids")
    if "'\\t'" in problem:
        problem = "a tab stands where spaces indent"
    place = f"{path}:{mark.line + 1}" if mark else str(path)
    since = f", in what begins in line {began.line + 1}" if began and mark and began.line != mark.line else ""
    return f"{place} is not YAML: {problem}{since}; mend the line"


def _keys(path: Path, node: yaml.MappingNode, above: str) -> Iterator[tuple[str, int]]:
    seen: dict[str, int] = {}
    for name, value in node.value:
        line = name.start_mark.line + 1
        if name.tag == "tag:yaml.org,2002:merge":
            continue
        if name.tag != "tag:yaml.org,2002:str":
            raise ValueError(f"{path}:{line}: the key {getattr(name, 'value', '?')} is no word; quote it, or mend it")
        if name.value in seen:
            raise ValueError(
                f"{path}:{line}: {above}{name.value} is there twice, first in line {seen[name.value]}; keep one of them"
            )
        seen[name.value] = line
        yield above + name.value, line
        if isinstance(value, yaml.MappingNode):
            yield from _keys(path, value, f"{above}{name.value}.")
