"""The whole-step study's figures."""

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def times(rows: Sequence[Row]) -> Any:
    """Milliseconds of the stack: a line a network by depth, or bars where there is one depth."""
    import altair as alt

    from experiments.memory.report import depth_axis
    from experiments.report import theme

    points = [
        {"layers": r["num_layers"], "what": f"{words}, mini-batch {r['batch_size']}", "y": r[key]}
        for r in rows
        for key, words in (
            ("stack_ms", r["policy"]),
            ("stack_graph_ms", f"{r['policy']}, as a graph"),
            ("ordinary_stack_ms", "ordinary layers"),
        )
        if r[key] is not None and (key != "ordinary_stack_ms" or r["policy"] == rows[0]["policy"])
    ]
    names = sorted({point["what"] for point in points})
    tips = ["what:N", "layers:Q", alt.Tooltip("y:Q", title="ms", format=".4~g")]
    if len({point["layers"] for point in points}) == 1:
        chart = alt.Chart(alt.Data(values=points)).mark_bar(color=theme.BLUE)
        chart = chart.encode(
            y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
            x=alt.X("y:Q", axis=alt.Axis(title="ms", format=",~r")),
            tooltip=tips,
        )
        return chart.properties(width="container", height=theme.HEIGHT).configure(**theme.CONFIG)
    scale = alt.Scale(domain=names, range=list(theme.colours(len(names))))
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("layers:Q", axis=depth_axis(alt, points), scale=alt.Scale(nice=False, padding=16)),
        y=alt.Y("y:Q", axis=alt.Axis(title="ms", format=",~r"), scale=alt.Scale(type="log")),
        color=alt.Color("what:N", title=None, scale=scale, legend=alt.Legend(columns=2, labelLimit=220)),
        tooltip=tips,
    )
    layers = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=60, opacity=1))
    return layers.properties(width="container", height=theme.HEIGHT).configure(**theme.CONFIG)


def bars(rows: Sequence[Row]) -> Any:
    """Milliseconds of a step by part, a bar a network."""
    import altair as alt

    from experiments.report import theme

    points = [
        {"network": f"{r['num_layers']} × {r['batch_size']}, {words}", "part": part, "ms": ms}
        for r in rows
        for key, words in (("parts_ms", r["policy"]), ("ordinary_parts_ms", "ordinary"))
        for part, ms in r[key].items()
        if key == "parts_ms" or r["policy"] == rows[0]["policy"]
    ]
    sums: dict[str, float] = {}
    for point in points:
        sums[point["part"]] = sums.get(point["part"], 0.0) + point["ms"]
    # As many as there are colours that are told apart.
    largest = sorted(sums, key=lambda part: -sums[part])[: len(theme.CATEGORIES) - 1]
    points = [point if point["part"] in largest else point | {"part": "the rest"} for point in points]
    names = [*largest, "the rest"] if len(sums) > len(largest) else largest
    scale = alt.Scale(domain=names, range=list(theme.colours(len(names))))
    chart = alt.Chart(alt.Data(values=points)).mark_bar()
    chart = chart.encode(
        y=alt.Y("network:N", title=None, sort=None),
        x=alt.X("ms:Q", stack="normalize", axis=alt.Axis(title="share of the step's kernels", format="%")),
        color=alt.Color("part:N", title=None, scale=scale, legend=alt.Legend(columns=3)),
        tooltip=["network:N", "part:N", alt.Tooltip("ms:Q", format=".3~g")],
    )
    return chart.properties(width="container", height=theme.HEIGHT).configure(**theme.CONFIG)
