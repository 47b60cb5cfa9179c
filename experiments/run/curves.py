"""`metrics.jsonl` read, and decimated into the `curves.json` that pages draw; free of the training libraries."""

import itertools
import json
from pathlib import Path
from typing import Any

from experiments.run.result import write_atomically

METRICS_NAME, CURVES_NAME = "metrics.jsonl", "curves.json"
MOST_POINTS = 500


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a `metrics.jsonl`."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break  # only the last line can be cut short, by a kill in mid-write
    return lines


def write_curves(folder: Path) -> None:
    """`curves.json` from `metrics.jsonl`: `{"train/loss": [[step, value], ...], ...}`."""
    write_atomically(folder / CURVES_NAME, json.dumps(_gathered(folder)) + "\n")


def read_curves(folder: Path) -> dict[str, list[list[float]]]:
    """The run's curves; of one that has not ended, those of what it has logged so far. Empty where there is nothing.

    Raises ValueError where the file is not JSON.
    """
    path = folder / CURVES_NAME
    if not path.exists():
        return {name: [list(point) for point in points] for name, points in _gathered(folder).items()}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, the page then reads {METRICS_NAME}.") from error


def _gathered(folder: Path) -> dict[str, list[tuple[int, float]]]:
    path = folder / METRICS_NAME
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in read_metrics(path) if path.exists() else []:
        for name, value in line.items():
            if name not in ("step", "epoch") and value is not None and line["step"] is not None:
                curves.setdefault(name, []).append((line["step"], value))
    return {name: decimate(curve) for name, curve in curves.items()}


def decimate(curve: list[tuple[int, float]], most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """At most `most` points: the lowest and the highest of each stretch, in order, so that no spike is lost."""
    if len(curve) <= most:
        return curve
    stretches = most // 2
    edges = [index * len(curve) // stretches for index in range(stretches + 1)]
    kept: list[tuple[int, float]] = []
    for start, stop in itertools.pairwise(edges):
        stretch = range(start, stop)
        lowest = min(stretch, key=lambda index: curve[index][1])
        highest = max(stretch, key=lambda index: curve[index][1])
        kept += [curve[index] for index in sorted({lowest, highest})]
    return kept
