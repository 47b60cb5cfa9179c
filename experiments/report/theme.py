"""How every figure looks: the Okabe-Ito palette (safe for colour-blind readers), quiet axes, text in the page's colour.

Text and axes are drawn in `currentColor`, so one figure serves light, dark and print: the page's style sheet decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
CATEGORIES = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY)
# Cuts of viridis that stay visible on white and on near-black.
RAMP = ("#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D", "#A0DA39", "#D9B400")
GREY = "#7F7F7F"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
HEIGHT = 280
LOW, TALL = 190, 380
# A chart's width within its axis, on a phone.
NARROW = 300

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "domainOpacity": 0.45,
        "tickOpacity": 0.45,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 5,
        "tickSize": 4,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False},
    "legend": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "orient": "top",
        "symbolStrokeWidth": 2,
        "symbolSize": 80,
    },
    "text": {"fontSize": 12, "fill": "currentColor"},
}


def dressed(chart: Any, height: int = HEIGHT) -> Any:
    """An Altair chart as wide as its place on the page, `height` pixels high, in this look."""
    return chart.properties(width="container", height=height).configure(**CONFIG)


def legend(names: Sequence[str], **more: Any) -> Any:
    """A legend above the chart in as many columns as a phone has room for, so that none is cut there."""
    import altair

    widest = 34 + 7 * max((len(str(name)) for name in names), default=0)
    return altair.Legend(columns=max(1, NARROW // widest), **more)


@overload
def rounded(value: float) -> float: ...
@overload
def rounded(value: float | None) -> float | None: ...
def rounded(value: float | None) -> float | None:
    """Six significant figures: what a figure's data needs, at a third of the bytes. None stays None."""
    return None if value is None else float(f"{value:.6g}")


def colours(count: int) -> Sequence[str]:
    """That many distinct colours: categories while they last, else steps of a ramp that also reads in grey."""
    if count <= len(CATEGORIES):
        return CATEGORIES[:count]
    return [RAMP[round(i * (len(RAMP) - 1) / (count - 1))] for i in range(count)]
