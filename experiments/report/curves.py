"""Training curves for a page: read from the runs' `curves.json`, thinned to what a page can carry.

A page of six runs shows every kept point; one of a thousand shares `MOST_POINTS_A_PAGE` among them, so that it still
opens at once. Thinning keeps the lowest and the highest of each stretch, so no spike is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.report.table import Row
from experiments.run import curves as curves_of_run
from experiments.run.curves import MOST_POINTS, decimate

METRICS = {"train/loss": "training loss", "val/loss": "dev loss", "val/wer": "dev WER, %"}
SCALES = {"val/wer": 100.0}
MOST_POINTS_A_PAGE = 120_000
FEWEST_POINTS = 20
# Above a ratio of highest to lowest value of this much a loss is drawn on a logarithmic axis.
LOGARITHMIC_FROM = 30.0
MOST_SHOWN_AT_FIRST = 24

Curves = dict[str, dict[str, list[list[float]]]]


def read_curves(rows: Sequence[Row], root: Path) -> Curves:
    """`{run: {metric: [[step, ...], [value, ...]]}}` for the rows that have curves, WER in percent."""
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_POINTS_A_PAGE // max(1, len(METRICS) * len(rows))))
    found: Curves = {}
    for row in rows:
        curves = curves_of_run.read_curves(root / row["folder"])
        drawn = {
            metric: _columns(decimate([(int(step), value) for step, value in curves[metric]], most), metric)
            for metric in METRICS
            if curves.get(metric)
        }
        if drawn:
            found[row["folder"]] = drawn
    return found


def is_logarithmic(curves: Curves, metric: str) -> bool:
    """Whether the metric's values span so much that a linear axis would hide the end of training."""
    values = [value for run in curves.values() for value in run.get(metric, [[], []])[1]]
    return metric not in SCALES and bool(values) and min(values) > 0 and max(values) / min(values) > LOGARITHMIC_FROM


def smoothing(curves: Curves, metric: str) -> int:
    """Points to either side of a running mean: for the training loss, which is one batch's, a 40th of the longest."""
    longest = max((len(run[metric][0]) for run in curves.values() if metric in run), default=0)
    return longest // 40 if metric == "train/loss" else 0


def shown_at_first(rows: Sequence[Row], group: str, curves: Curves) -> list[str]:
    """Folders of the runs drawn before anyone chooses: all of a small study, else one run a value of `group`."""
    drawable = [row for row in rows if row["folder"] in curves]
    if len(drawable) <= MOST_SHOWN_AT_FIRST:
        return [row["folder"] for row in drawable]
    first: dict[Any, str] = {}
    for row in drawable:
        first.setdefault(row.get(group), row["folder"])
    return list(first.values())[:MOST_SHOWN_AT_FIRST]


def _columns(points: Sequence[tuple[int, float]], metric: str) -> list[list[float]]:
    """Steps and values; of two values of one step (the step's own and its epoch's mean) the first."""
    scale = SCALES.get(metric, 1.0)
    first = dict(reversed(points))
    return [sorted(first), [float(f"{first[step] * scale:.4g}") for step in sorted(first)]]
