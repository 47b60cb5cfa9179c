"""The command line, made plain before jsonargparse reads it.

    --config card.yaml     the files that the card names under `include:` (relative to it) come before it
    order                  all files come before all options, so an option wins wherever it stands
    --x=None               means null, as W&B's `${args}` writes it
    --reuse-commit         means --reuse_commit=true

Ranks that Lightning starts run `sys.argv` again and arrive at the same list; `sys.argv` itself is never changed.
"""

from pathlib import Path

from experiments.settings.yaml_file import YamlFile, read_yaml

CONFIGS = Path(__file__).with_name("configs")
BASE = CONFIGS / "base.yaml"


def plain(arguments: list[str]) -> list[str]:
    """The same command line, files first and expanded.

    Raises ValueError for a file that is missing or no card (`settings/yaml_file.py`), and for includes in a circle.
    """
    files: list[str] = []
    options: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--config", "-c"):
            files += with_includes(_named(next(rest, "")))
        elif argument.startswith("--config="):
            files += with_includes(_named(argument.removeprefix("--config=")))
        elif argument == "--reuse-commit":
            options.append("--reuse_commit=true")
        elif argument == "None":
            options.append("null")
        elif argument.startswith("--") and argument.endswith("=None"):
            options.append(argument.removesuffix("None") + "null")
        else:
            options.append(argument)
    return [f"--config={file}" for file in files] + options


def with_includes(file: str, above: tuple[Path, ...] = ()) -> list[str]:
    """`file` preceded by everything it includes, each in the order of reading; inline JSON stands for itself."""
    if file.lstrip().startswith("{"):
        return [file]
    path = Path(file).resolve()
    if path in above:
        circle = " -> ".join(str(p) for p in (*above, path))
        raise ValueError(f"{path} includes itself ({circle}); take one include out")
    card = read_yaml(file)
    files = []
    for name in _includes(card):
        included = path.parent / name
        if not included.is_file():
            raise ValueError(
                f"{card.place('include')} includes {name}, but {included} is no file; name it relative to the card"
            )
        files += with_includes(str(included), (*above, path))
    return [*files, file]


def _named(file: str) -> str:
    if not file:
        raise ValueError("--config names no file; give a card, as --config experiments/configs/fsdd.yaml")
    return file


def _includes(card: YamlFile) -> list[str]:
    names = card.content.get("include")
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{card.place('include')}: include is {names!r}; give a list of files, relative to this one")
    return names
