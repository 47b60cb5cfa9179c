"""A sweep file: W&B's own format, so that `wandb sweep FILE` and `python -m sweeps run FILE` take the same one.

    description: the question
    method: grid | random | bayes
    command: [${env}, ${interpreter}, -m, experiments, fit, --config, CARD, --config, "${args_json}"]
    parameters: {model.num_layers: {values: [8, 24]}, seed_everything: {values: [0, 1, 2]}}

The order of a grid is W&B's: parameters sorted by name, the last one varies fastest.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from sweeps.hyperband import Hyperband, read_hyperband
from sweeps.parameters import Parameter, read_parameters

METHODS = ("grid", "random", "bayes")
# What W&B's schema allows at the top of a file; anything else is refused there as here.
KEYS = frozenset(
    {
        *("apiVersion", "kind", "controller", "description", "program", "job", "image_uri", "entity", "project"),
        *("method", "name", "run_cap", "metric", "metrics", "scheduler", "early_terminate", "parameters", "command"),
    }
)
UNSUITABLE = {
    "${args_no_boolean_flags}": "it turns true into a flag without a value, which the command line refuses",
    "${args_append_hydra}": "it is Hydra's",
    "${args_override_hydra}": "it is Hydra's",
    "${args_no_hyphens}": "the command line takes options with hyphens",
    "${args_json_file}": "the file is the agent's own",
}
Point = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file."""

    path: Path
    name: str
    description: str
    method: str
    parameters: tuple[Parameter, ...]
    command: tuple[str, ...]
    run_cap: int | None
    metric: str | None
    goal: str
    early_terminate: Hyperband | None

    def points(self, seed: int = 0) -> list[Point]:
        """Every point of a grid, or `run_cap` draws that are a function of `seed`; no point twice.

        Raises ValueError for a random sweep without run_cap, and for `bayes`, whose points follow from results.
        """
        if self.method == "bayes":
            raise ValueError(
                f"{self.path}: the points of a bayes sweep follow from its results; there is no list of them."
            )
        if self.method == "random":
            return self._draws(Random(seed))
        keys = [parameter.key for parameter in self.parameters]
        product = itertools.product(*(parameter.grid() for parameter in self.parameters))
        points = [dict(zip(keys, values, strict=True)) for values in product]
        return points if self.run_cap is None else points[: self.run_cap]

    def extremes(self) -> list[Point]:
        """Few points in which every listed value and both ends of every range occur: what a bayes sweep may propose."""
        values = {parameter.key: parameter.extremes() for parameter in self.parameters}
        most = max(len(one) for one in values.values())
        return [{key: one[index % len(one)] for key, one in values.items()} for index in range(most)]

    def _draws(self, random: Random) -> list[Point]:
        if self.run_cap is None:
            raise ValueError(f"{self.path}: a random sweep has no end; give run_cap, as in run_cap: 20.")
        found: dict[str, Point] = {}
        for _ in range(50 * self.run_cap):
            point = {parameter.key: parameter.draw(random) for parameter in self.parameters}
            found.setdefault(json.dumps(point, sort_keys=True), point)
            if len(found) == self.run_cap:
                break
        return list(found.values())

    def arguments(self, point: Point) -> list[str]:
        """What a point's run has after `fit`, as the W&B agent would pass it."""
        expanded: list[str] = []
        for item in self.command[self.command.index("fit") + 1 :]:
            if item == "${args_json}":
                expanded.append(json.dumps(point))
            elif item == "${args}":
                expanded += [f"--{key}={value}" for key, value in point.items()]
            elif item == "${args_no_equals}":
                expanded += [word for key, value in point.items() for word in (f"--{key}", str(value))]
            else:
                expanded.append(item)
        return expanded


def read_sweep(path: Path) -> Sweep:
    """Read and check one file. Raises ValueError with one sentence: the file, what is wrong, what is allowed."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is no file; name a sweep file, as sweeps/depth_constant_width.yaml.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds no mapping; a sweep file has method, command and parameters.")
    try:
        return _checked(path, content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _checked(path: Path, content: Mapping[str, Any]) -> Sweep:
    unknown = sorted(set(content) - KEYS)
    if unknown:
        raise ValueError(f"{unknown[0]} is no key of a sweep file; W&B knows {', '.join(sorted(KEYS))}.")
    method = content.get("method")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; it is one of {', '.join(METHODS)}.")
    run_cap = content.get("run_cap")
    if run_cap is not None and (type(run_cap) is not int or run_cap < 1):
        raise ValueError(f"run_cap is {run_cap!r}; give a whole number of runs from 1.")
    metric = content.get("metric") or {}
    if not isinstance(metric, Mapping) or not set(metric) <= {"name", "goal", "target"}:
        raise ValueError("metric is a mapping of name and goal, as in metric: {name: val/wer, goal: minimize}.")
    if method == "bayes" and "name" not in metric:
        raise ValueError("a bayes sweep needs a metric, as in metric: {name: val/wer, goal: minimize}.")
    if metric.get("goal", "minimize") not in ("minimize", "maximize"):
        raise ValueError(f"metric.goal is {metric['goal']!r}; it is minimize or maximize.")
    parameters = read_parameters(content.get("parameters"))
    early = None
    if "early_terminate" in content:
        early = read_hyperband(content["early_terminate"], metric.get("name"), metric.get("goal", "minimize"))
    return Sweep(
        path,
        str(content.get("name") or path.stem),
        str(content.get("description") or ""),
        str(method),
        tuple(sorted(parameters, key=lambda parameter: parameter.key)),
        _command(content.get("command")),
        run_cap,
        metric.get("name"),
        metric.get("goal", "minimize"),
        early,
    )


def _command(command: Any) -> tuple[str, ...]:
    example = "[${env}, ${interpreter}, -m, experiments, fit, --config, CARD, --config, ${args_json}]"
    if not isinstance(command, list) or not all(isinstance(item, str | int | float) for item in command):
        raise ValueError(f"command is {command!r}; give a list, as {example}.")
    words = tuple(str(item) for item in command)
    if ("-m", "experiments", "fit") not in zip(words, words[1:], words[2:], strict=False):
        raise ValueError(f"command does not run `-m experiments fit`; write it as {example}.")
    for word in words:
        if word in UNSUITABLE:
            raise ValueError(f"command uses {word}, but {UNSUITABLE[word]}; use ${{args_json}}.")
        if "${args" in word and word not in ("${args_json}", "${args}", "${args_no_equals}"):
            raise ValueError(f"command has {word!r}, which W&B passes on as it stands; a macro is an item of its own.")
    if not {"${args_json}", "${args}", "${args_no_equals}"} & set(words):
        raise ValueError(f"command passes no parameters on; end it with ${{args_json}}, as {example}.")
    return words
