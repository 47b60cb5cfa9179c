"""The throughput experiment's results: a table on the terminal, throughput.json, table.csv and a page.

The figure is the paper's Figure 3 as its readers asked for it: achieved TFLOP/s by mini-batch over the whole range, and
a zoom on 1 to 16 where the argument is decided.
"""

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.run.result import write_atomically

Row = dict[str, Any]
ZOOM = 16
QUESTION = (
    "How small may the mini-batch of a recurrent layer be before the hardware runs empty? "
    "A persistent kernel keeps the recurrent weights on chip over all time steps; "
    "ordinary layers read them again at every step."
)


def print_table(rows: Sequence[Row]) -> None:
    """One line a measured figure, with its ratio to the persistent kernel's where that ran."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="one recurrent layer; µs per time step: median (lowest to highest sample)")
    for name in (
        "dtype",
        "units",
        "steps",
        "batch",
        "pass",
        "backend",
        "µs/step",
        "TFLOP/s",
        "of peak",
        "× persistent",
    ):
        table.add_column(name, justify="left" if name in ("dtype", "pass", "backend") else "right")
    for row in rows:
        if row["us_per_step"] is not None:
            table.add_row(*(_cell(row, rows, key) for key in TERMINAL_COLUMNS))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for reason in dict.fromkeys(f"{row['backend']}: {row['reason']}" for row in rows if row["reason"]):
        print(f"not timed - {reason}")


TERMINAL_COLUMNS = {
    "dtype": "dtype",
    "hidden_size": "units",
    "time_steps": "steps",
    "batch_size": "batch",
    "pass": "pass",
    "backend": "backend",
    "us_per_step": "µs/step",
    "tflops": "TFLOP/s",
    "share_of_peak": "of peak",
    "ratio": "× persistent",
}
PAGE_COLUMNS = {
    "pass": "pass",
    "batch_size": "mini-batch",
    "backend": "backend",
    "us_per_step": "µs per step (low to high)",
    "tflops": "TFLOP/s",
    "share_of_peak": "of peak",
    "ratio": "× persistent",
    "error": "error / allowed",
}


def write_results(output: Path, rows: Sequence[Row], peaks: dict[str, float], device: Any) -> None:
    """throughput.json (rows and circumstances), table.csv (the rows), report.html; each written in one move."""
    from experiments.run.provenance import facts_of

    output.mkdir(parents=True, exist_ok=True)
    facts = facts_of(device.type)
    record = {**facts, "peak_tflops": peaks, "rows": list(rows)}
    write_atomically(output / "throughput.json", json.dumps(record, indent=1))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(output / "table.csv", text.getvalue())
    _write_page(output / "report.html", rows, facts, peaks)


def figure(rows: Sequence[Row], which_pass: str, *, zoom: bool) -> Any:
    """TFLOP/s by mini-batch, a line a backend, whiskers from the lowest to the highest sample."""
    import altair as alt

    from experiments.report import theme

    points = [
        {
            "backend": row["backend"],
            "batch": row["batch_size"],
            "y": row["tflops"],
            "low": row["tflops"] * row["us_per_step"] / row["us_per_step_high"],
            "high": row["tflops"] * row["us_per_step"] / row["us_per_step_low"],
            "us": row["us_per_step"],
        }
        for row in rows
        if row["us_per_step"] is not None and row["pass"] == which_pass and (not zoom or row["batch_size"] <= ZOOM)
    ]
    names = [name for name in COLOURS if any(point["backend"] == name for point in points)]
    values = sorted({point["batch"] for point in points})
    x = alt.X(
        "batch:Q",
        axis=alt.Axis(title="mini-batch", values=values, format="d"),
        scale=alt.Scale(nice=False, padding=16) if zoom else alt.Scale(type="log", base=2, nice=False, padding=16),
    )
    y = alt.Y("y:Q", axis=alt.Axis(title="TFLOP/s", format=",~r"), scale=alt.Scale(zero=True))
    colour = alt.Color("backend:N", title=None, scale=alt.Scale(domain=names, range=[COLOURS[name] for name in names]))
    tips = ["backend:N", alt.Tooltip("batch:Q", title="mini-batch"), alt.Tooltip("y:Q", title="TFLOP/s", format=".3~g"),
            alt.Tooltip("us:Q", title="µs per step", format=".3~g")]  # fmt: skip
    base = alt.Chart(alt.Data(values=points))
    layers = alt.layer(
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        base.mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, tooltip=tips),
    )
    return layers.properties(width="container", height=theme.HEIGHT).configure(**theme.CONFIG)


COLOURS = {
    "persistent": "#D55E00",
    "cudnn": "#0072B2",
    "flashrnn": "#009E73",
    "gemm": "#CC79A7",
    "reference": "#E69F00",
    "torch": "#56B4E9",
}


def _write_page(path: Path, rows: Sequence[Row], facts: dict[str, str], peaks: dict[str, float]) -> None:
    from experiments.report.sections import Document, Figure, Section, TextTable, write_document

    sections = []
    measured = [row for row in rows if row["us_per_step"] is not None]
    problems = dict.fromkeys((row["dtype"], row["hidden_size"], row["time_steps"]) for row in measured)
    for number, (dtype, hidden_size, time_steps) in enumerate(problems):
        problem = {"dtype": dtype, "hidden_size": hidden_size, "time_steps": time_steps}
        chosen = [row for row in measured if all(row[key] == value for key, value in problem.items())]
        figures = [
            Figure(
                f"{which_pass}-{'zoom' if zoom else 'all'}-{number}",
                f"{words}: {f'mini-batch 1 to {ZOOM}' if zoom else 'the whole range'}",
                "Whiskers: lowest to highest sample.",
                figure(chosen, which_pass, zoom=zoom),
            )
            for which_pass, words in (("forward", "Forward"), ("both", "Forward and backward"))
            if any(row["pass"] == which_pass for row in chosen)
            for zoom in (False, True)
        ]
        table = TextTable(
            "Figures",
            f"Peak is one large {dtype} matrix product in the same run: {peaks[dtype]:,.3g} TFLOP/s.",
            list(PAGE_COLUMNS.values()),
            [[_cell(row, rows, key) for key in PAGE_COLUMNS] for row in chosen],
            words=frozenset({0, 2}),
        )
        title = f"{hidden_size} units, {time_steps} time steps, {dtype}"
        sections.append(Section(title, figures=figures, tables=[table]))
    reasons = list(dict.fromkeys((row["backend"], row["reason"]) for row in rows if row["reason"]))
    if reasons:
        rows_of_text = [[name, reason] for name, reason in reasons]
        missing = TextTable("Not timed", "", ("backend", "why"), rows_of_text, words=frozenset({0, 1}))
        sections.append(Section("What is not here", tables=[missing]))
    shown = {key: value for key, value in facts.items() if key != "command"}
    status = f"{len(measured)} figures, each checked against the reference before it was timed"
    title = "Throughput of one recurrent layer"
    write_document(path, Document(title, QUESTION, status, sections, facts=shown, command=facts["command"]))


def _cell(row: Row, rows: Sequence[Row], key: str) -> str:
    if key == "us_per_step":
        return f"{row[key]:.3g} ({row['us_per_step_low']:.3g} to {row['us_per_step_high']:.3g})"
    if key == "ratio":
        persistent = _persistent(row, rows)
        return "–" if persistent is None else f"{row['us_per_step'] / persistent:.3g}"
    if key == "share_of_peak":
        return f"{100 * row[key]:.3g} %"
    if key == "tflops":
        return f"{row[key]:.3g}"
    if key == "error":
        return f"{row['error']:.1e} / {row['error_allowed']:.1e}"
    return str(row[key])


def _persistent(row: Row, rows: Sequence[Row]) -> float | None:
    same = ("hidden_size", "batch_size", "time_steps", "dtype", "pass")
    for other in rows:
        if other["backend"] == "persistent" and all(other[key] == row[key] for key in same):
            return other["us_per_step"]
    return None
