"""Points of a sweep as runs that are known to parse: named, resolved, hashed, before any of them starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.many_runs.resolving import resolve
from experiments.many_runs.runner import Run
from experiments.report.table import look_up
from experiments.run.identity import identity
from sweeps.columns import column_names, point_name, varied_keys
from sweeps.sweep_file import Point, Sweep


@dataclass(frozen=True)
class Planned:
    """One point: its run's name, arguments of `fit`, resolved config and identity."""

    name: str
    point: Point
    arguments: list[str]
    config: dict[str, Any]
    config_hash: str

    def run(self, root: Path) -> Run:
        """The run beneath `root`; a deeper or wider one costs more and starts earlier."""
        folder = root / "runs" / f"{self.name}-{self.config_hash[:8]}"
        command = (sys.executable, "-m", "experiments", "fit", *self.arguments, "--output", str(folder))
        depth, width = (look_up(self.config, f"model.{key}") or 1 for key in ("num_layers", "hidden_size"))
        return Run(self.name, folder, command, self.config, self.config_hash, cost=(depth + 3.0) * width)


def plan(
    sweep: Sweep, settings: Sequence[str] = (), seed: int = 0, limit: int | None = None
) -> tuple[list[Planned], dict[str, str]]:
    """Every point (the first `limit`), and the columns that vary over them.

    `settings` are `KEY=VALUE` for all runs, after the point's own. Raises ValueError where a point does not parse, or
    two are the same run.
    """
    points = sweep.points(seed)[:limit]
    keys = varied_keys(points)
    return plan_points(sweep, points, keys, settings), column_names(keys)


def plan_points(sweep: Sweep, points: Sequence[Point], keys: Sequence[str], settings: Sequence[str]) -> list[Planned]:
    """The given points, named by `keys`. Raises ValueError as `plan` does."""
    named: dict[str, Point] = {}
    for point in points:
        name = point_name(point, keys)
        named[name if name not in named else f"{name}_{len(named)}"] = point
    extra = [f"--{given}" for given in settings]
    arguments = {name: [*sweep.arguments(point), *extra] for name, point in named.items()}
    try:
        configs = resolve(arguments)
    except ValueError as error:
        raise ValueError(f"{sweep.path}: {error}") from error
    first: dict[str, str] = {}
    found = []
    for name, config in configs.items():
        config_hash = identity(config)
        if first.setdefault(config_hash, name) != name:
            raise ValueError(
                f"{sweep.path}: {first[config_hash]} and {name} are the same run; a key is varied that does not change "
                "the resolved config (does a later --config or --set override it?)."
            )
        found.append(Planned(name, named[name], arguments[name], config, config_hash))
    return found
