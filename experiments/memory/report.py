"""The memory study's results: a table on the terminal, memory.json, table.csv and a page."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.run.result import write_atomically

Row = dict[str, Any]
GIB = 2**30
QUESTION = (
    "How deep may a recurrent network be before it no longer fits, and what does a layer cost? Activation memory grows "
    "with the mini-batch; a layer that is efficient at 4 leaves room for depth, and one that keeps less leaves more."
)
COLUMNS = {
    "num_layers": "layers",
    "hidden_size": "units",
    "batch_size": "mini-batch",
    "policy": "policy",
    "tensors_per_layer": "tensors a layer",
    "activation_bytes": "activations, GiB",
    "baseline_activation_bytes": "ordinary, GiB",
    "activation_ratio": "ratio",
    "peak_memory_bytes": "peak, GiB",
    "predicted_peak_memory_bytes": "predicted",
    "workspace_bytes": "workspace, MiB",
    "step_ms": "ms a step",
    "baseline_step_ms": "ordinary, ms",
}
PAGE_COLUMNS = {key: name for key, name in COLUMNS.items() if key not in ("hidden_size", "batch_size")}
FIT_COLUMNS = {
    "gpu_memory_gib": "GPU, GiB",
    "hidden_size": "units",
    "policy": "policy",
    "largest_depth": "deepest",
    "at_batch_size": "at mini-batch",
    "largest_batch_size": "largest mini-batch",
    "at_num_layers": "at layers",
}
WORDS = frozenset({1})
# Where the search ended before the memory did.
SEARCH_ENDED = {"largest_depth": "deeper_not_tried", "largest_batch_size": "larger_not_tried"}


def write_results(output: Path, rows: Sequence[Row], fits: Sequence[Row], refused: Sequence[str], device: Any) -> None:
    """memory.json (rows, what fits, circumstances), table.csv (rows), report.html; each written in one move."""
    from experiments.report.sections import write_document
    from experiments.run.provenance import facts_of

    output.mkdir(parents=True, exist_ok=True)
    facts = facts_of(device.type)
    record = {**facts, "rows": list(rows), "fits": list(fits), "refused": list(refused)}
    write_atomically(output / "memory.json", json.dumps(record, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(output / "table.csv", text.getvalue())
    write_document(output / "report.html", document(rows, fits, refused, facts))


def print_table(rows: Sequence[Row], fits: Sequence[Row], refused: Sequence[str]) -> None:
    """The rows, what fits, and what did not."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150)
    for title, columns, lines in (("one training step", COLUMNS, rows), (fit_caption(fits), FIT_COLUMNS, fits)):
        table = Table(title=title)
        for name in columns.values():
            table.add_column(name, justify="left" if name == "policy" else "right")
        for line in lines:
            table.add_row(*(cell(line, key) for key in columns))
        console.print(table)
    for sentence in refused:
        print(f"not run - {sentence}")
    if sentence := calibration(rows):
        print(sentence)


def calibration(rows: Sequence[Row]) -> str:
    """How far peaks on CUDA were from the prediction, and the constant that would have been nearest; else nothing."""
    from statistics import median

    found = [row for row in rows if row["workspace_bytes"] is not None]
    if not found:
        return ""
    beyond = sorted(row["workspace_bytes"] / 2**20 for row in found)
    error = max(abs(row["predicted_peak_memory_bytes"] / row["peak_memory_bytes"] - 1) for row in found)
    return (
        f"peaks within {100 * error:.1f} % of the prediction; beyond a step's tensors there were {beyond[0]:.0f} to "
        f"{beyond[-1]:.0f} MiB, median {median(beyond):.0f} (WORKSPACE in experiments/memory/prediction.py)"
    )


def fit_caption(fits: Sequence[Row]) -> str:
    """What the second table stands for."""
    first = fits[0]
    return f"what fits, predicted: {first['frames']} time steps, {first['precision']}"


def document(rows: Sequence[Row], fits: Sequence[Row], refused: Sequence[str], facts: dict[str, str]) -> Any:
    """The page."""
    from experiments.report.sections import Card, Document, Figure, Section, TextTable

    source = rows[0]["peak_memory_source"]
    sections = []
    for number, (width, batch) in enumerate(dict.fromkeys((r["hidden_size"], r["batch_size"]) for r in rows)):
        chosen = [row for row in rows if (row["hidden_size"], row["batch_size"]) == (width, batch)]
        first = chosen[0]
        title = f"{width} units, mini-batch {batch}, {first['frames']} time steps, precision {first['precision']}"
        figures = [
            Figure(
                f"{key}-{number}",
                words,
                f"{source.capitalize()}; crosses: predicted before the run." if predicted else note,
                figure(chosen, key, predicted),
            )
            for key, words, predicted, note in (
                ("activation_bytes", "Activation memory by depth", None, f"{source.capitalize()}."),
                ("peak_memory_bytes", "Peak memory by depth", "predicted_peak_memory_bytes", ""),
            )
        ]
        keys = [key for key in PAGE_COLUMNS if any(row[key] is not None for row in chosen)]
        table = TextTable(
            "Figures",
            "",
            [PAGE_COLUMNS[key] for key in keys],
            [[cell(r, k) for k in keys] for r in chosen],
            words=WORDS,
        )
        sections.append(Section(title, figures=figures, tables=[table]))
    fit_table = TextTable(
        "Largest depth and mini-batch",
        fit_caption(fits) + "; from four traced steps, extrapolated.",
        list(FIT_COLUMNS.values()),
        [[cell(r, k) for k in FIT_COLUMNS] for r in fits],
        words=frozenset({2}),
    )
    sections.append(Section("What fits on a GPU", tables=[fit_table]))
    if refused:
        missing = TextTable("Not run", "", ("why",), [[sentence] for sentence in refused], words=frozenset({0}))
        sections.append(Section("What is not here", tables=[missing]))
    shown = {key: value for key, value in facts.items() if key != "command"}
    compared = [row for row in rows if row["activation_ratio"] is not None]
    cards = [
        Card(
            f"Activation memory, {policy}",
            f"{deepest['activation_ratio']:.2f} ×",
            f"of ordinary layers: {deepest['num_layers']} layers, mini-batch {deepest['batch_size']}",
        )
        for policy in dict.fromkeys(row["policy"] for row in compared)
        if (deepest := max((r for r in compared if r["policy"] == policy), key=lambda r: r["num_layers"]))
    ]
    if sentence := calibration(rows):
        shown |= {"calibration": sentence}
    if source != "predicted":
        error = max(abs(r["predicted_peak_memory_bytes"] / r["peak_memory_bytes"] - 1) for r in rows)
        cards.append(Card("Prediction of the peak", f"{100 * error:.1f} %", "largest error of all rows"))
    status = f"{len(rows)} training steps, {source}" + (f" on {facts['device']}" if source != "predicted" else "")
    return Document("Memory by depth", QUESTION, status, sections, cards, shown, facts["command"])


def figure(rows: Sequence[Row], key: str, predicted: str | None) -> Any:
    """Memory by depth, a line a policy and one for ordinary layers."""
    import altair as alt

    from experiments.report import theme

    unit, size = ("GiB", GIB) if max(r["peak_memory_bytes"] for r in rows) >= GIB / 10 else ("MiB", 2**20)
    points = [
        {"layers": r["num_layers"], "what": r["policy"], "y": r[key] / size, "p": predicted and r[predicted] / size}
        for r in rows
    ]
    points += [
        {"layers": r["num_layers"], "what": "ordinary layers", "y": r[f"baseline_{key}"] / size, "p": None}
        for r in rows
        if r["policy"] == rows[0]["policy"] and r[f"baseline_{key}"] is not None
    ]
    names = list(dict.fromkeys(point["what"] for point in points))
    x = alt.X("layers:Q", axis=depth_axis(alt, points), scale=alt.Scale(nice=False, padding=16))
    y = alt.Y("y:Q", axis=alt.Axis(title=unit, format=",~r"), scale=alt.Scale(zero=True))
    colours = alt.Scale(domain=names, range=list(theme.colours(len(names))))
    colour = alt.Color("what:N", title=None, scale=colours)
    tips = ["what:N", alt.Tooltip("layers:Q", title="layers"), alt.Tooltip("y:Q", title=unit, format=".4~g")]
    base = alt.Chart(alt.Data(values=points))
    layers = [
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, tooltip=tips),
    ]
    if predicted:
        crosses = alt.Chart(alt.Data(values=[point for point in points if point["p"] is not None]))
        layers.append(crosses.mark_point(shape="cross", size=90, color=theme.GREY).encode(x=x, y=alt.Y("p:Q")))
    return alt.layer(*layers).properties(width="container", height=theme.HEIGHT).configure(**theme.CONFIG)


def depth_axis(alt: Any, points: Sequence[Row]) -> Any:
    """Ticks at the depths there are."""
    return alt.Axis(title="recurrent layers", values=sorted({point["layers"] for point in points}), format="d")


def cell(row: Row, key: str) -> str:
    """A number as the tables show it."""
    value = row[key]
    if value is None:
        return "–"
    if key == "workspace_bytes":
        return f"{value / 2**20:.0f}"
    if key.endswith("_bytes"):
        return f"{value / GIB:.3g}"
    if isinstance(value, float):
        return f"{value:.3g}"
    at_least = "≥ " if row.get(SEARCH_ENDED.get(key, ""), False) else ""
    return f"{at_least}{value:,}" if isinstance(value, int) else str(value)
