"""Depths (or whatever a study varies) set against each other on the same test utterances, by `bootstrap.py`.

Each value is compared with the best one and with the one before it: the first says what is given up, the second
whether a step deeper was worth it. Seeds are pooled, so an interval speaks of the utterances; the spread of the seeds
is that of `intervals.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.report.bootstrap import DRAWS, Difference, Errors, paired_difference
from experiments.report.findings import Group, words
from experiments.report.table import Row, ended_well
from experiments.run.utterance_errors import read_errors


@dataclass(frozen=True)
class Comparison:
    """One value of what is varied, in words; its test WER less the best's and less that of the value before it.

    A side is None where there is nothing to compare with: the best itself, the first value, no errors by utterance.
    """

    words: str
    best: Difference | None
    before: Difference | None

    def record(self) -> dict[str, Any]:
        """As a study's JSON keeps it: fractions."""
        sides = {"against_best": self.best, "against_before": self.before}
        return {"words": self.words, "draws": DRAWS} | {
            name: None if one is None else vars(one) | {"told_apart": told_apart(one)} for name, one in sides.items()
        }


def compared(rows: Sequence[Row], found: Sequence[Group], best: Group | None, root: Path) -> list[Comparison]:
    """Every group of `found`, in order; empty where the runs' errors by utterance are not there, or of one group alone.

    Where two things are varied at once, only the first of which orders the groups, the one before is the one with the
    same second value.
    """
    sides = [_sides(rows, group, root) for group in found]
    if sum(map(bool, sides)) < 2:
        return []
    at_best = next((side for group, side in zip(found, sides, strict=True) if group is best), [])
    last: dict[tuple[Any, ...], list[Errors]] = {}
    said = []
    for group, side in zip(found, sides, strict=True):
        rest = tuple(group.values.values())[1:]
        said.append(
            Comparison(
                words(group),
                None if group is best else paired_difference(side, at_best),
                paired_difference(side, last.get(rest, [])),
            )
        )
        last[rest] = side or last.get(rest, [])
    return said


def told_apart(one: Difference) -> bool:
    """Whether the bounds leave zero out: the test set can tell the two apart."""
    return one.low > 0 or one.high < 0


def points(one: Difference | None) -> str:
    """Difference and bounds in points of WER, as text: `+1.49 [+0.31, +2.74]`, in one piece within the brackets."""
    if one is None:
        return "–"
    said = f"{100 * one.observed:+.2f} [{100 * one.low:+.2f},\u00a0{100 * one.high:+.2f}]"
    return said.replace("-", "−")


def _sides(rows: Sequence[Row], group: Group, root: Path) -> list[Errors]:
    members = [row for row in rows if ended_well(row) and all(row.get(key) == v for key, v in group.values.items())]
    return [errors for row in members if (errors := read_errors(root / row["folder"]))]
