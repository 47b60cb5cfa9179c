"""The figures, as Altair charts over the tidy table. Each shows one metric by what the study varies.

One seed or two: points. Three or more: points, and the mean with its 95 % interval. Runs without a number to compare
(diverged, failed) are crosses on the upper edge, never left out in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from experiments.report import theme
from experiments.report.comparisons import Comparison, told_apart
from experiments.report.findings import noun
from experiments.report.intervals import by_key
from experiments.report.paper import PaperTable
from experiments.report.table import Row, ended_well, is_lost

MOST_AXIS_VALUES = 14
CROSS = "M-.5,-.5L.5,.5M-.5,.5L.5,-.5"


@dataclass(frozen=True)
class Axis:
    """What a study varies: a column of the table, the words beneath an axis, its noun in a heading, number or not."""

    column: str
    title: str
    noun: str
    numeric: bool = True

    def encoding(self, rows: Sequence[Row]) -> alt.X:
        """The horizontal axis over the values that `rows` have, each of them marked while there are few."""
        values = sorted({row[self.column] for row in rows if row.get(self.column) is not None}, key=_order)
        if not self.numeric:
            axis = alt.Axis(title=self.title, labelAngle=0, labelLimit=120)
            return alt.X(f"{self.column}:N", axis=axis, sort=[str(value) for value in values])
        marked: dict[str, Any] = {"values": values} if len(values) <= MOST_AXIS_VALUES else {}
        # By itself Vega rounds to the distance of two marks, which need not be even: 1.0, 2.0 or 0.001, 0.001.
        marked |= {"format": ",d", "tickMinStep": 1} if _all_whole(values) else {"format": ",.4~g"}
        scale = alt.Scale(zero=False, nice=False, padding=24)
        return alt.X(f"{self.column}:Q", axis=alt.Axis(title=self.title, **marked), scale=scale)


DEPTH = Axis("num_layers", "recurrent layers", "depth")


def metric(
    rows: Sequence[Row],
    x: Axis,
    column: str,
    title: str,
    *,
    scale: float = 1.0,
    group: str | None = None,
    colour: str = theme.BLUE,
    with_failures: bool = False,
    from_zero: bool = True,
) -> alt.LayerChart:
    """`column` (times `scale`) by `x`, a line through the means, one colour a value of `group`.

    The axis starts at zero; without `from_zero` only where that would not press all values into its upper half.
    """
    keys = [x.column, *([group] if group else [])]
    points = [_point(row, keys, row[column] * scale) for row in rows if ended_well(row) and _has(row, x.column, column)]
    means = [_mean(dict(zip(keys, key, strict=True)), one) for key, one in by_key(points, keys, "y").items()]
    lost = [_lost(row, x.column) for row in rows if is_lost(row) and _has(row, x.column)] if with_failures else []
    paint = _paint(group, points, colour)
    x_encoding = x.encoding([*points, *lost])
    y = alt.Y("y:Q", axis=alt.Axis(title=title, tickCount=6), scale=_scale([point["y"] for point in points], from_zero))
    tip = [alt.Tooltip(f"{key}:N", title=_words(key)) for key in keys]
    y_tip = alt.Tooltip("y:Q", title=title, format=",.4~g")
    # On an axis of words nothing lies between two values, and groups stand side by side.
    beside = {} if x.numeric or not group else {"xOffset": alt.XOffset(f"{group}:N")}
    mean = alt.Chart(alt.Data(values=means)).encode(x=x_encoding, y=y, color=paint, **beside)
    layers = [mean.mark_line(strokeWidth=2, opacity=0.7)] if x.numeric else []
    if any(one["low"] is not None for one in means):
        bounds = [alt.Tooltip(f"{bound}:Q", format=",.4~g") for bound in ("low", "high")]
        mean = mean.encode(tooltip=[*tip, y_tip, *bounds, "seeds:Q"])
        interval = mean.transform_filter("datum.low !== null").mark_rule(strokeWidth=2)
        layers += [interval.encode(y=alt.Y("low:Q"), y2="high:Q"), mean.mark_point(filled=True, size=90, opacity=1)]
    seeds = alt.Chart(alt.Data(values=points)).mark_point(filled=True, size=70, opacity=0.75)
    layers.append(seeds.encode(x=x_encoding, y=y, color=paint, tooltip=["run:N", *tip, "seed:N", y_tip], **beside))
    if lost:
        crosses = alt.Chart(alt.Data(values=lost)).mark_point(
            shape=CROSS, size=140, strokeWidth=2.5, color=theme.VERMILION, opacity=0.9
        )
        layers.append(crosses.encode(x=x_encoding, y=alt.value(6), tooltip=["run:N", "status:N", "reason:N"]))
    return theme.dressed(alt.layer(*layers))


def word_error_rate(rows: Sequence[Row], x: Axis, group: str | None = None) -> alt.LayerChart:
    """Test WER by `x`, with what did not finish as crosses."""
    chart = metric(rows, x, "wer", "test WER, %", scale=100.0, group=group, with_failures=True, from_zero=False)
    return chart.properties(height=theme.TALL)


def memory(rows: Sequence[Row], x: Axis) -> alt.LayerChart:
    """Peak memory and what is saved for backward, by `x`, in MiB or GiB."""
    scale, unit = memory_unit(rows)
    series = {"peak_memory_bytes": "peak memory", "saved_bytes": "saved for backward"}
    long = [
        {**row, "part": words, "bytes": row[column]}
        for column, words in series.items()
        for row in rows
        if row.get(column) is not None
    ]
    return metric(long, x, "bytes", unit, scale=scale, group="part")


def trade_off(rows: Sequence[Row], x: Axis, group: str | None = None) -> alt.LayerChart:
    """Mean test WER against mean peak memory, a labelled point a value of `x`: what an error less costs in memory."""
    scale, unit = memory_unit(rows)
    keys = [x.column, *([group] if group else [])]
    good = [row for row in rows if ended_well(row) and _has(row, x.column, "peak_memory_bytes")]
    wer, bytes_ = by_key(good, keys, "wer"), by_key(good, keys, "peak_memory_bytes")
    points = [
        {**dict(zip(keys, map(_plain, key), strict=True)), "wer": theme.rounded(100 * wer[key].mean),
         "memory": theme.rounded(bytes_[key].mean * scale), "label": str(key[0])}
        for key in wer
    ]  # fmt: skip
    paint = _paint(group, points, theme.BLUE)
    tip = [alt.Tooltip(f"{key}:N", title=_words(key)) for key in keys]
    chart = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X(
            "memory:Q", axis=alt.Axis(title=f"peak memory, {unit}", tickCount=6), scale=alt.Scale(zero=True, nice=True)
        ),
        y=alt.Y(
            "wer:Q",
            axis=alt.Axis(title="test WER, %", tickCount=5),
            scale=_scale([point["wer"] for point in points], True),
        ),
        color=paint,
        tooltip=[*tip, alt.Tooltip("wer:Q", format=",.4~g"), alt.Tooltip("memory:Q", format=",.4~g")],
    )
    marks = [
        chart.mark_line(strokeWidth=1.5, opacity=0.4).encode(
            order=alt.Order(f"{x.column}:{'Q' if x.numeric else 'N'}")
        ),
        chart.mark_point(filled=True, size=80, opacity=0.9),
        chart.mark_text(dx=9, dy=-8, align="left").encode(text="label:N", color=alt.value("currentColor")),
    ]
    return theme.dressed(alt.layer(*marks), theme.LOW)


def differences(comparisons: Sequence[Comparison]) -> alt.LayerChart:
    """Test WER less the best's, in points, with 95 % bounds of the paired bootstrap; hollow where they hold zero."""
    rows = [
        {"words": one.words, "y": theme.rounded(100 * found.observed), "low": theme.rounded(100 * found.low),
         "high": theme.rounded(100 * found.high), "told": told_apart(found)}
        for one in comparisons
        if (found := one.best) is not None
    ]  # fmt: skip
    names = [one.words for one in comparisons if one.best is not None]
    bounds = [alt.Tooltip(f"{name}:Q", format="+.2f") for name in ("low", "high")]
    tips = ["words:N", alt.Tooltip("y:Q", title="points of test WER", format="+.2f"), *bounds]
    # What is varied together stands on lines of its own: a phone has no room beside the bounds.
    labels = alt.Axis(title=None, labelExpr="split(datum.label, ', ')", labelLimit=160, ticks=False, domain=False)
    y = alt.Y("words:N", sort=names, axis=labels)
    title = ["points of test WER,", "less the best's"]
    axis = alt.Axis(
        title=title, labelExpr="datum.value == 0 ? '0' : format(datum.value, '+~r')", tickCount=5, grid=True
    )
    base = alt.Chart(alt.Data(values=rows)).encode(y=y, tooltip=tips)
    point = base.encode(x=alt.X("y:Q", axis=axis, scale=alt.Scale(nice=True, padding=12)))
    layers = [
        alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(stroke="currentColor", strokeOpacity=0.6).encode(x="x:Q"),
        base.mark_rule(strokeWidth=2, color=theme.BLUE).encode(x="low:Q", x2="high:Q"),
        point.encode(fill=alt.condition("datum.told", alt.value(theme.BLUE), alt.value("var(--paper)"))).mark_point(
            size=80, color=theme.BLUE, opacity=1
        ),
    ]
    lines = max((name.count(", ") + 1 for name in names), default=1)
    return theme.dressed(alt.layer(*layers), 20 + (12 + 14 * lines) * len(rows))


def memory_unit(rows: Sequence[Row]) -> tuple[float, str]:
    """Factor from bytes, and the unit, that suit the largest run."""
    most = max((row["peak_memory_bytes"] or 0 for row in rows), default=0)
    return (2.0**-30, "GiB") if most >= 2**30 else (2.0**-20, "MiB")


def curve(
    title: str, names: Sequence[str], *, logarithmic: bool = False, smoothed: int = 0, legend: str = "layers"
) -> alt.LayerChart:
    """An empty line chart that the page fills with the chosen runs: rows of run, group, step, value.

    `smoothed`: above the values, faint, their running mean over so many points to either side.
    """
    palette = alt.Scale(domain=list(names), range=theme.colours(len(names)))
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(zero=True)
    chart = alt.Chart(alt.NamedData(name="curves")).encode(
        x=alt.X("step:Q", axis=alt.Axis(title="optimiser step", format=",d", tickCount=4)),
        y=alt.Y("value:Q", axis=alt.Axis(title=title, tickCount=6), scale=scale),
        color=alt.Color("group:N", title=legend, scale=palette, legend=theme.legend(names, symbolOpacity=1)),
        detail="run:N",
        tooltip=["run:N", "step:Q", alt.Tooltip("value:Q", format=",.4~g")],
    )
    line = chart.mark_line(strokeWidth=1.5, opacity=0.2 if smoothed else 0.85)
    if not smoothed:
        return theme.dressed(alt.layer(line))
    window = alt.WindowFieldDef(op="mean", field="value", **{"as": "mean"})
    mean = chart.transform_window([window], frame=[-smoothed, smoothed], groupby=["run"], sort=[alt.SortField("step")])
    return theme.dressed(alt.layer(line, mean.mark_line(strokeWidth=1.8, opacity=0.9).encode(y="mean:Q")))


def paper(table: PaperTable) -> alt.LayerChart:
    """One table of the paper, as published."""
    rest = {"name": "the paper", "seed": 0, "status": "finished"}
    rows = [{**row, **rest, "wer": row["wer_percent"]} for row in table.rows]
    return metric(rows, Axis(table.x, table.x_title, ""), "wer", "dev WER, %", colour=theme.GREY, from_zero=False)


def _point(row: Row, keys: Sequence[str], y: float) -> Row:
    return {**{key: _plain(row[key]) for key in keys}, "y": theme.rounded(y), "run": row["name"], "seed": row["seed"]}


def _mean(values: Row, one: Any) -> Row:
    return {
        **values,
        "y": theme.rounded(one.mean),
        "low": theme.rounded(one.low),
        "high": theme.rounded(one.high),
        "seeds": one.count,
    }


def _lost(row: Row, x: str) -> Row:
    return {x: _plain(row[x]), "run": row["name"], "status": row["status"], "reason": row["reason"]}


def _paint(group: str | None, points: Sequence[Row], colour: str) -> Any:
    names = list(dict.fromkeys(str(point[group]) for point in points)) if group else []
    if len(names) < 2:
        return alt.value(colour)
    palette = alt.Scale(domain=names, range=theme.colours(len(names)))
    return alt.Color(f"{group}:N", title=_words(group or ""), scale=palette, legend=theme.legend(names))


def _has(row: Row, *columns: str) -> bool:
    return all(row.get(column) is not None for column in columns)


def _scale(values: Sequence[float], from_zero: bool) -> alt.Scale:
    if values and min(values) == max(values) == 0:
        return alt.Scale(domain=[0, 1])  # of zeros alone there would be one tick, as of any one value without zero
    zero = from_zero or not values or min(values) < 0.5 * max(values) or min(values) == max(values)
    return alt.Scale(zero=zero, nice=True, padding=0 if zero else 8)


def _all_whole(values: Sequence[Any]) -> bool:
    return all(float(value).is_integer() for value in values)


def _order(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _plain(value: Any) -> Any:
    """As it is drawn: numbers and words as they are, true and false as words."""
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else str(value).lower()


def _words(column: str) -> str:
    return "" if column == "part" else noun(column)
