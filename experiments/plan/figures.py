"""The plan's figures: the feasible region, and hours by number of GPUs."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from experiments.report import theme

Row = dict[str, Any]
SHORT = {"effect 2": "memory", "effect 3": "batch", "effect 2, effect 3": "both"}


def region(rows: Sequence[Row], plan: Row) -> Any:
    """Number of GPUs x per-GPU batch: hours in colour and words where possible, the forbidding effect elsewhere."""
    known = [row["hours"] for row in rows if row["possible"]]
    middle = (min(known) * max(known)) ** 0.5
    cells = [
        {
            "gpus": row["gpus"],
            "batch": row["batch_size"],
            "hours": theme.rounded(row["hours"]) if row["possible"] else None,
            "words": _hours(row["hours"]) if row["possible"] else SHORT[row["reason"]],
            "why": row["reason"] or "possible",
            "accumulation": row["accumulation"],
            "global": row["global_batch_size"],
            "gib": theme.rounded(row["memory_bytes"] / 2**30),
            "step": theme.rounded(row["step_ms"]),
            "light": row["hours"] < middle,
            "chosen": (row["gpus"], row["batch_size"]) == (plan["gpus"], plan["batch_size"]),
        }
        for row in rows
    ]
    tips = [
        alt.Tooltip("gpus:O", title="GPUs"),
        alt.Tooltip("batch:O", title="per-GPU batch"),
        alt.Tooltip("accumulation:Q", title="accumulation"),
        alt.Tooltip("global:Q", title="algorithmic batch"),
        alt.Tooltip("hours:Q", title="hours", format=",.3~r"),
        alt.Tooltip("step:Q", title="ms a step", format=",.3~r"),
        alt.Tooltip("gib:Q", title="GiB a GPU", format=",.3~r"),
        alt.Tooltip("why:N", title="forbidden by"),
    ]
    x = alt.X("batch:O", axis=alt.Axis(title="per-GPU batch", labelAngle=0, grid=False))
    y = alt.Y("gpus:O", axis=alt.Axis(title="GPUs", grid=False), sort="descending")
    base = alt.Chart(alt.Data(values=cells)).encode(x=x, y=y, tooltip=tips)
    shade = alt.Color(
        "hours:Q",
        title="hours",
        scale=alt.Scale(type="log", range=list(reversed(theme.RAMP[:6]))),
        legend=alt.Legend(gradientLength=140, gradientThickness=8, tickCount=3, format=",~r"),
    )
    forbidden = base.transform_filter("datum.hours === null")
    possible = base.transform_filter("datum.hours !== null")
    memory = "indexof(datum.why, 'effect 2') >= 0"
    # Words only where a cell is wide enough for them; on a phone the colours and the tips remain.
    shown = alt.expr("bandwidth('x') > 30 ? 1 : 0")
    layers = [
        possible.mark_rect(stroke="#ffffff", strokeWidth=1, strokeOpacity=0.4).encode(color=shade),
        forbidden.transform_filter(memory).mark_rect(fill="#7F7F7F", fillOpacity=0.4),
        forbidden.transform_filter(f"!({memory})").mark_rect(fill="#7F7F7F", fillOpacity=0.12),
        possible.transform_filter("!datum.light")
        .mark_text(fontSize=10, fill="#ffffff", opacity=shown)
        .encode(text="words:N"),
        possible.transform_filter("datum.light")
        .mark_text(fontSize=10, fill="#1b1f24", opacity=shown)
        .encode(text="words:N"),
        forbidden.mark_text(fontSize=9, opacity=shown).encode(text="words:N"),
        base.transform_filter("datum.chosen").mark_rect(fillOpacity=0, stroke=theme.VERMILION, strokeWidth=3),
    ]
    height = 30 * len({cell["gpus"] for cell in cells})
    return theme.dressed(alt.layer(*layers), max(theme.HEIGHT, height))


def hours(rows: Sequence[Row]) -> Any:
    """Hours to finish by number of GPUs, log-log, and perfect scaling from the fewest."""
    points = [
        {key: theme.rounded(row[key]) for key in ("gpus", "batch_size", "accumulation", "hours", "gpu_hours")}
        for row in rows
    ]
    first = points[0]
    perfect = [
        {"gpus": point["gpus"], "hours": theme.rounded(first["hours"] * first["gpus"] / point["gpus"])}
        for point in points
    ]
    x = alt.X(
        "gpus:Q",
        axis=alt.Axis(title="GPUs", values=[point["gpus"] for point in points], format=",d", labelOverlap=True),
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
    )
    y = alt.Y("hours:Q", axis=alt.Axis(title="hours to finish", format=",~r"), scale=alt.Scale(type="log", padding=8))
    tips = [f"{key}:Q" for key in ("gpus", "batch_size", "accumulation", "hours", "gpu_hours")]
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y, tooltip=tips)
    ideal = alt.Chart(alt.Data(values=perfect)).encode(x=x, y=y)
    layers = [
        ideal.mark_line(strokeDash=[4, 4], color="#7F7F7F", strokeWidth=1.5),
        base.mark_line(strokeWidth=2, color=theme.BLUE),
        base.mark_point(filled=True, size=60, color=theme.BLUE, opacity=1),
    ]
    return theme.dressed(alt.layer(*layers), theme.HEIGHT)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"
