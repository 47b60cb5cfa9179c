"""The scaling figures: the whole range, the zoom, efficiency, a step's parts, and the model against measurements."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from experiments.report import theme

Row = dict[str, Any]
ZOOM = 16
# Diamos et al. 2016, section 5 and figure 5: 250 TFLOP/s on 128 GPUs is in the text, the GEMM points are read off.
PAPER = (
    {"devices": 128, "tflops": 250.0, "what": "paper, persistent kernel"},
    {"devices": 16, "tflops": 32.0, "what": "paper, GEMM layers (read off)"},
    {"devices": 128, "tflops": 55.0, "what": "paper, GEMM layers (read off)"},
)
CROSS = "M-.5,-.5L.5,.5M-.5,.5L.5,-.5"
PARTS = {
    "compute_ms": "compute",
    "exposed_ms": "all-reduce that shows",
    "extra_ms": "overhead of overlap",
    "optimizer_ms": "optimiser",
}


def strong(rows: Sequence[Row]) -> Any:
    """TFLOP/s by number of GPUs, log-log: a line an interconnect, perfect scaling dashed, crosses from the paper."""
    modelled = _of(rows, "strong", "model")
    x, y = _devices(), alt.Y("tflops:Q", axis=_axis("TFLOP/s, whole system"), scale=alt.Scale(type="log", nice=False))
    colour = _colour(modelled)
    tips = [*_tips("interconnect", "devices", "batch_size", "accumulation"), _number("tflops", "TFLOP/s")]
    lines = alt.Chart(_data(modelled)).encode(x=x, y=y, color=colour, tooltip=tips)
    first = modelled[0]
    perfect = [{"devices": n, "tflops": first["tflops"] / first["devices"] * n} for n in _counts(modelled)]
    paper = alt.Chart(_data(PAPER)).encode(x=x, y=y, tooltip=["what:N", "devices:Q", _number("tflops", "TFLOP/s")])
    layers = [
        alt.Chart(_data(perfect)).mark_line(strokeDash=[4, 4], color="#7F7F7F", strokeWidth=1.5).encode(x=x, y=y),
        lines.mark_line(strokeWidth=2),
        lines.mark_point(filled=True, size=35, opacity=1),
        paper.mark_point(shape=CROSS, size=90, strokeWidth=2.5, color=theme.VERMILION, opacity=1),
    ]
    measured = _of(rows, "strong", "measured")
    if measured:
        points = alt.Chart(_data(measured)).encode(x=x, y=y, tooltip=[*_tips("devices", "batch_size")])
        layers.append(points.mark_point(size=90, strokeWidth=2, color="#7F7F7F", opacity=1))
    return theme.dressed(alt.layer(*layers))


def zoom(rows: Sequence[Row]) -> Any:
    """Milliseconds a step by per-GPU batch, up to 16, linear."""
    small = [row for row in _of(rows, "strong", "model") if row["batch_size"] * row["accumulation"] <= ZOOM]
    values = sorted({row["batch_size"] for row in small})
    x = alt.X("batch_size:Q", axis=_axis("per-GPU batch", values=values), scale=alt.Scale(nice=False, padding=16))
    y = alt.Y("step_ms:Q", axis=_axis("ms a step"), scale=alt.Scale(zero=True))
    tips = [*_tips("interconnect", "devices", "batch_size"), _number("step_ms", "ms"), _number("tflops", "TFLOP/s")]
    base = alt.Chart(_data(small)).encode(x=x, y=y, color=_colour(small), tooltip=tips)
    return theme.dressed(alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=60, opacity=1)))


def efficiency(rows: Sequence[Row], mode: str, batch_size: int | None = None) -> Any:
    """Efficiency by number of GPUs; measured points (of that batch size, if one is given) beside the model's lines."""
    modelled = _of(rows, mode, "model")
    x, y = _devices(), alt.Y("efficiency:Q", axis=_axis("efficiency", format="~%"), scale=alt.Scale(zero=True))
    tips = [*_tips("interconnect", "devices", "batch_size", "global_batch_size"), _number("efficiency", "efficiency")]
    base = alt.Chart(_data(modelled)).encode(x=x, y=y, color=_colour(modelled), tooltip=tips)
    layers = [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=35, opacity=1)]
    measured = [row for row in _of(rows, mode, "measured") if batch_size is None or row["batch_size"] == batch_size]
    if measured:
        points = alt.Chart(_data(measured)).encode(x=x, y=y, tooltip=tips)
        layers.append(points.mark_point(filled=True, size=90, color="#7F7F7F", opacity=1))
    return theme.dressed(alt.layer(*layers))


def parts(rows: Sequence[Row]) -> Any:
    """Stacked milliseconds of one step by number of GPUs."""
    long = [
        {"devices": row["devices"], "part": words, "order": order, "ms": theme.rounded(row[key])}
        for row in rows
        for order, (key, words) in enumerate(PARTS.items())
    ]
    names = list(PARTS.values())
    palette = alt.Scale(domain=names, range=theme.colours(len(names)))
    colour = alt.Color("part:N", title=None, scale=palette, legend=theme.legend(names))
    chart = alt.Chart(_data(long)).mark_bar().encode(
        x=alt.X("devices:O", axis=alt.Axis(title="GPUs", labelAngle=0)),
        y=alt.Y("ms:Q", axis=_axis("ms a step"), stack=True),
        color=colour,
        order="order:O",
        tooltip=["devices:O", "part:N", _number("ms", "ms")],
    )  # fmt: skip
    return theme.dressed(chart)


def errors(rows: Sequence[Row]) -> Any:
    """Predicted against measured steps, in milliseconds, with the line of equality."""
    points = [
        {
            "measured": theme.rounded(row["measured"] * 1e3),
            "predicted": theme.rounded(row["predicted"] * 1e3),
            "how": "left out" if row["held_out"] else "fitted",
            "batch_size": row["batch_size"],
            "error": f"{row['error']:+.1%}",
        }
        for row in rows
    ]
    ends = [f([min(p["measured"], p["predicted"]) for p in points]) for f in (min, max)]
    ends[1] = max(max(p["measured"], p["predicted"]) for p in points)
    scale = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("measured:Q", axis=_axis("measured, ms"), scale=scale)
    y = alt.Y("predicted:Q", axis=_axis("predicted, ms"), scale=scale)
    colour = alt.Color("how:N", title=None, scale=alt.Scale(domain=["fitted", "left out"], range=theme.colours(2)))
    shape = alt.Shape("how:N", title=None, scale=alt.Scale(domain=["fitted", "left out"], range=["circle", "square"]))
    equal = alt.Chart(_data([{"measured": v, "predicted": v} for v in ends])).mark_line(color="#7F7F7F", strokeWidth=1)
    dots = alt.Chart(_data(points)).mark_point(filled=True, size=80, opacity=0.9)
    return theme.dressed(
        alt.layer(
            equal.encode(x=x, y=y),
            dots.encode(x=x, y=y, color=colour, shape=shape, tooltip=["batch_size:Q", "how:N", "error:N"]),
        )
    )


def messages(rows: Sequence[Row]) -> Any:
    """All-reduce time by message size, log-log."""
    points = [
        {"bytes": row["bytes"]}
        | {key: theme.rounded(row[key] * 1e3) for key in ("seconds", "low", "high", "predicted")}
        for row in rows
    ]
    x = alt.X(
        "bytes:Q",
        axis=_axis("message, bytes", format="~s", labelOverlap="greedy", labelSeparation=6),
        scale=alt.Scale(type="log", nice=False, padding=12),
    )
    y = alt.Y("seconds:Q", axis=_axis("ms"), scale=alt.Scale(type="log", nice=False, padding=12))
    base = alt.Chart(_data(points))
    return theme.dressed(
        alt.layer(
            base.mark_line(strokeWidth=2, color=theme.BLUE).encode(x=x, y=alt.Y("predicted:Q")),
            base.mark_rule(strokeWidth=1.5, color=theme.ORANGE).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            base.mark_point(filled=True, size=60, color=theme.ORANGE, opacity=1).encode(
                x=x, y=y, tooltip=["bytes:Q", _number("seconds", "measured, ms"), _number("predicted", "fitted, ms")]
            ),
        )
    )


def _of(rows: Sequence[Row], mode: str, source: str) -> list[Row]:
    kept = ("devices", "batch_size", "accumulation", "global_batch_size", "step_ms", "tflops", "efficiency")
    return [
        {"interconnect": row["interconnect"]} | {key: theme.rounded(row[key]) for key in kept}
        for row in rows
        if row["mode"] == mode and row["source"] == source
    ]


def _counts(rows: Sequence[Row]) -> list[int]:
    return sorted({row["devices"] for row in rows})


def _colour(rows: Sequence[Row]) -> alt.Color:
    names = list(dict.fromkeys(row["interconnect"] for row in rows))
    palette = alt.Scale(domain=names, range=theme.colours(len(names)))
    return alt.Color("interconnect:N", title=None, scale=palette, legend=theme.legend(names))


def _devices() -> alt.X:
    ticks = [4**power for power in range(6)]
    return alt.X(
        "devices:Q",
        axis=alt.Axis(title="GPUs", values=ticks, format=",d"),
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
    )


def _axis(title: str, **more: Any) -> alt.Axis:
    return alt.Axis(title=title, **({"format": ",~r"} | more))


def _tips(*names: str) -> list[str]:
    return [f"{name}:{'N' if name == 'interconnect' else 'Q'}" for name in names]


def _number(name: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{name}:Q", title=title, format=",.4~g")


def _data(rows: Sequence[Row]) -> alt.Data:
    return alt.Data(values=list(rows))
