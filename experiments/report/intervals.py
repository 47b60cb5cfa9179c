"""What several seeds say together: mean, spread, and the 95 % Student t interval of the mean from three seeds on.

Two seeds give no interval worth drawing (t = 12.7 times the standard error): they are shown as points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FEWEST_FOR_INTERVAL = 3
# Quantile 0.975 of Student's t for 1, 2, ... 30 degrees of freedom (any table of the distribution).
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T_NORMAL = 1.960


@dataclass(frozen=True)
class Spread:
    """`low` and `high` bound the 95 % interval of the mean; None below three values."""

    count: int
    mean: float
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread:
    """Mean and interval of independent values. Raises ValueError for none."""
    count = len(values)
    if not count:
        raise ValueError("A mean of no values was asked for; give at least one.")
    mean = sum(values) / count
    if count < FEWEST_FOR_INTERVAL:
        return Spread(count, mean, None, None)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    t = _T[count - 2] if count - 2 < len(_T) else _T_NORMAL
    half = t * deviation / math.sqrt(count)
    return Spread(count, mean, mean - half, mean + half)


def by_key(rows: Iterable[dict[str, Any]], keys: Sequence[str], value: str) -> dict[tuple[Any, ...], Spread]:
    """Spread of `value` over the rows that agree in `keys`, in order of first appearance; None values are left out."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row.get(value) is not None:
            groups.setdefault(tuple(row.get(key) for key in keys), []).append(row[value])
    return {key: spread(values) for key, values in groups.items()}
