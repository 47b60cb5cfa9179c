"""The batch-size figures: samples and steps to the target, dev loss at a fixed budget, and the learning rates tried."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from experiments.report import theme

Row = dict[str, Any]
CROSS = "M-.5,-.5L.5,.5M-.5,.5L.5,-.5"
# Diamos et al. 2016, figure 8, read off: dev CTC cost after 10 epochs; about the same at all sizes below 512.
PAPER = ((512, 48.2), (1024, 51.5), (2048, 75.3))


def to_target(curve: Sequence[Row], column: str, title: str, fitted: Any, noise: Sequence[Row]) -> Any:
    """`samples_to_target` or `steps_to_target` by batch size, log-log; the fitted trade-off, the noise scales."""
    points = [
        {"batch": one["global_batch_size"], "y": theme.rounded(one[column]), "rate": one["learning_rate"]}
        for one in curve
        if one[column]
    ]
    x, y = _batch(curve), _logarithmic("y", title)
    base = alt.Chart(alt.Data(values=points))
    tips = [alt.Tooltip("batch:Q", title="batch"), _number("y", title), _number("rate", "learning rate")]
    layers: list[Any] = []
    band = _noise_band(noise)
    if band:
        layers.append(
            alt.Chart(alt.Data(values=[band]))
            .mark_rect(opacity=0.16, color=theme.ORANGE)
            .encode(x=alt.X("low:Q"), x2="high:Q", tooltip=["low:Q", "high:Q"])
        )
    if fitted and fitted["batch"]:
        line = _trade_off(curve, column, fitted)
        layers.append(alt.Chart(alt.Data(values=line)).mark_line(color="#7F7F7F", strokeDash=[4, 4]).encode(x=x, y=y))
    layers.append(base.mark_line(strokeWidth=2, color=theme.BLUE, opacity=0.5).encode(x=x, y=y))
    layers.append(base.mark_point(filled=True, size=80, color=theme.BLUE, opacity=1).encode(x=x, y=y, tooltip=tips))
    lost = [{"batch": one["global_batch_size"]} for one in curve if not one[column]]
    if lost:
        layers.append(_crosses(lost, x))
    return theme.dressed(alt.layer(*layers))


def loss(rows: Sequence[Row], curve: Sequence[Row]) -> Any:
    """Lowest dev loss within the budget by batch size: every run light, the best learning rate's mean joined."""
    every = [
        {"batch": r["global_batch_size"], "y": theme.rounded(r["lowest_val_loss"]), "rate": r["learning_rate"]}
        for r in rows
        if r["lowest_val_loss"] is not None
    ]
    best = [{"batch": one["global_batch_size"], "y": theme.rounded(one["lowest_loss"])} for one in curve]
    x = _batch(curve)
    y = alt.Y("y:Q", axis=alt.Axis(title="lowest dev loss", format=",~r"), scale=alt.Scale(zero=False, nice=True))
    tips = [alt.Tooltip("batch:Q", title="batch"), _number("y", "dev loss"), _number("rate", "learning rate")]
    light = alt.Chart(alt.Data(values=every)).mark_point(size=45, color="#7F7F7F", opacity=0.7)
    joined = alt.Chart(alt.Data(values=best))
    layers = [
        light.encode(x=x, y=y, tooltip=tips),
        joined.mark_line(strokeWidth=2, color=theme.BLUE).encode(x=x, y=y),
        joined.mark_point(filled=True, size=80, color=theme.BLUE, opacity=1).encode(x=x, y=y),
    ]
    lost = [{"batch": r["global_batch_size"]} for r in rows if r["lowest_val_loss"] is None]
    if lost:
        layers.append(_crosses(lost, x))
    return theme.dressed(alt.layer(*layers))


def on_the_way(rows: Sequence[Row], losses: Sequence[Row], curve: Sequence[Row], target: float) -> Any:
    """Dev loss by samples seen, every seed of each size's best learning rate, a colour a size; dashed: the target."""
    best = {(one["global_batch_size"], one["learning_rate"]) for one in curve}
    curves = {one["folder"]: one["val_loss"] for one in losses}
    points = [
        {"batch": str(size), "run": r["folder"], "samples": theme.rounded(step * size), "y": theme.rounded(loss)}
        for r in rows
        if (size := r["global_batch_size"], r["learning_rate"]) in best
        for step, loss in curves.get(r["folder"], [])
    ]
    names = [str(one["global_batch_size"]) for one in sorted(curve, key=lambda one: one["global_batch_size"])]
    x = alt.X("samples:Q", axis=alt.Axis(title="samples seen", format=",~r", tickCount=5))
    y = _logarithmic("y", "dev loss")
    palette = alt.Scale(domain=names, range=theme.colours(len(names)))
    colour = alt.Color("batch:N", title="batch", scale=palette, legend=theme.legend(names))
    tips = ["batch:N", _number("samples", "samples"), _number("y", "dev loss")]
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y, color=colour, detail="run:N", tooltip=tips)
    goal = alt.Chart(alt.Data(values=[{"y": theme.rounded(target)}])).mark_rule(strokeDash=[4, 4], color=theme.GREY)
    lines = [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=25, opacity=1)]
    return theme.dressed(alt.layer(goal.encode(y=y), *lines), theme.TALL)


def paper() -> Any:
    """The paper's figure 8."""
    points = [{"batch": batch, "y": cost} for batch, cost in PAPER]
    x = _batches([batch for batch, _ in PAPER])
    y = alt.Y("y:Q", axis=alt.Axis(title="dev CTC cost after 10 epochs"), scale=alt.Scale(zero=False))
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y, tooltip=["batch:Q", "y:Q"])
    return theme.dressed(
        alt.layer(base.mark_line(color="#7F7F7F"), base.mark_point(filled=True, size=70, color="#7F7F7F", opacity=1))
    )


def by_rate(rows: Sequence[Row]) -> Any:
    """Lowest dev loss by learning rate, a line a batch size."""
    points = [
        {"batch": str(r["global_batch_size"]), "rate": r["learning_rate"], "y": theme.rounded(r["lowest_val_loss"])}
        for r in rows
        if r["lowest_val_loss"] is not None
    ]
    names = list(dict.fromkeys(str(size) for size in sorted({r["global_batch_size"] for r in rows})))
    values = sorted({point["rate"] for point in points})
    x = alt.X(
        "rate:Q",
        axis=alt.Axis(title="learning rate", values=values, format="~g"),
        scale=alt.Scale(type="log", nice=False, padding=14),
    )
    y = alt.Y("y:Q", axis=alt.Axis(title="lowest dev loss", format=",~r"), scale=alt.Scale(zero=False))
    colour = alt.Color("batch:N", title="batch", scale=alt.Scale(domain=names, range=theme.colours(len(names))))
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y, color=colour, tooltip=["batch:N", "rate:Q", "y:Q"])
    return theme.dressed(alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=60, opacity=1)))


def _trade_off(curve: Sequence[Row], column: str, fitted: Any) -> list[Row]:
    sizes = sorted(one["global_batch_size"] for one in curve)
    points = []
    for i in range(41):
        batch = sizes[0] * (sizes[-1] / sizes[0]) ** (i / 40)
        samples = fitted["samples_min"] * (1 + batch / fitted["batch"])
        points.append(
            {"batch": theme.rounded(batch), "y": theme.rounded(samples if "samples" in column else samples / batch)}
        )
    return points


def _noise_band(noise: Sequence[Row]) -> Row | None:
    """From the lowest to the highest noise scale measured."""
    scales = [one["noise_scale"] for one in noise if one["noise_scale"]]
    return {"low": theme.rounded(min(scales)), "high": theme.rounded(max(scales))} if scales else None


def _crosses(points: Sequence[Row], x: alt.X) -> Any:
    base = alt.Chart(alt.Data(values=list(points)))
    mark = base.mark_point(shape=CROSS, size=140, strokeWidth=2.5, color=theme.VERMILION, opacity=0.9)
    return mark.encode(x=x, y=alt.value(6), tooltip=["batch:Q"])


def _batch(curve: Sequence[Row]) -> alt.X:
    return _batches(sorted(one["global_batch_size"] for one in curve))


def _batches(sizes: Sequence[int]) -> alt.X:
    axis = alt.Axis(title="algorithmic batch, utterances", values=list(sizes), format=",d")
    return alt.X("batch:Q", axis=axis, scale=alt.Scale(type="log", base=2, nice=False, padding=14))


def _logarithmic(column: str, title: str) -> alt.Y:
    axis = alt.Axis(title=title, format=",~r")
    return alt.Y(f"{column}:Q", axis=axis, scale=alt.Scale(type="log", nice=False, padding=14))


def _number(name: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{name}:Q", title=title, format=",.4~r")
