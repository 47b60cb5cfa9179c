"""W&B's `early_terminate: {type: hyperband}` without its server: a run that does worse than others did is stopped.

At each bracket (a number of evaluations on the dev set) a run's best value so far is set against those of all runs that
got as far; only the best 1/eta go on. Brackets are min_iter, min_iter * eta, ..., or max_iter / eta, max_iter / eta^2,
... (s of them). While fewer than `eta` runs have got to a bracket it decides nothing: there is nobody to be worse than.
Source: W&B's sweep configuration and its reference (PyPI `sweeps`, hyperband_stopping.py); Li et al., JMLR 2018.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KEYS = {"type", "min_iter", "max_iter", "s", "eta", "strict"}
LAST_BRACKET = 10_000


@dataclass
class Hyperband:
    """A judge for the runner (`experiments/many_runs/early_stop.py`); it remembers what every run has shown."""

    metric: str
    brackets: tuple[int, ...]
    eta: float
    lower_is_better: bool = True
    shown: dict[str, dict[int, float]] = field(default_factory=dict)

    def __call__(self, name: str, lines: Sequence[bytes]) -> str | None:
        """Take in new lines of a run's `metrics.jsonl`; the reason to stop it, if there is one."""
        mine = self.shown.setdefault(name, {})
        reason = None
        for line in lines:
            row = json.loads(line)
            # A run that goes on from a checkpoint is read again: a step counts once.
            if self.metric in row and row["step"] not in mine:
                mine[row["step"]] = self._loss(row[self.metric])
                if len(mine) in self.brackets:
                    reason = self._judged(name, len(mine)) or reason
        return reason

    def _judged(self, name: str, bracket: int) -> str | None:
        best = {one: min(list(told.values())[:bracket]) for one, told in self.shown.items() if len(told) >= bracket}
        if len(best) < self.eta:
            return None
        bar = float(np.quantile(list(best.values()), 1 / self.eta, method="lower"))
        if best[name] <= bar:
            return None
        sign = 1 if self.lower_is_better else -1
        return (
            f"{self.metric} {sign * best[name]:.4g} after {bracket} evaluations, where the best 1/{self.eta:g} of "
            f"{len(best)} runs had {sign * bar:.4g}"
        )

    def _loss(self, value: float | None) -> float:
        """Smaller is better; what is not finite is logged as null and is the worst there is."""
        if value is None:
            return math.inf
        return value if self.lower_is_better else -value


def read_hyperband(content: Any, metric: str | None, goal: str) -> Hyperband:
    """The `early_terminate:` of a sweep file. Raises ValueError for what W&B would refuse, or without a metric."""
    if not isinstance(content, Mapping) or content.get("type") != "hyperband":
        raise ValueError("early_terminate has one type, as in early_terminate: {type: hyperband, min_iter: 3}.")
    if not set(content) <= KEYS:
        raise ValueError(f"early_terminate has {sorted(set(content) - KEYS)[0]}; it knows {', '.join(sorted(KEYS))}.")
    if metric is None:
        raise ValueError("early_terminate needs a metric, as in metric: {name: val/wer, goal: minimize}.")
    eta = content.get("eta", 3)
    for key in ("eta", "min_iter", "max_iter", "s"):
        value = content.get(key, 2)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < (2 if key == "eta" else 1):
            raise ValueError(f"early_terminate.{key} is {value!r}; give a number from {2 if key == 'eta' else 1}.")
    if "min_iter" in content:
        first = content["min_iter"]
        steps = int(math.log(LAST_BRACKET / first, eta)) + 1
        brackets = {int(first * eta**k) for k in range(steps)}
    elif {"max_iter", "s"} <= set(content):
        brackets = {int(content["max_iter"] / eta**k) for k in range(1, int(content["s"]) + 1)}
    else:
        raise ValueError("early_terminate needs min_iter, or max_iter and s.")
    return Hyperband(metric, tuple(sorted(brackets - {0})), float(eta), goal == "minimize")
