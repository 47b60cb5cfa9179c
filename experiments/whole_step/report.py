"""The whole-step study's results: lines on the terminal, whole_step.json, table.csv and a page."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.run.provenance import facts_of
from experiments.run.result import write_atomically
from experiments.whole_step.charts import bars, times
from experiments.whole_step.requirements import Requirement, requirements

Row = dict[str, Any]
VERDICTS = {True: "met", False: "NOT MET", None: "not measured"}
QUESTION = (
    "What is a persistent kernel worth in a whole training step, from audio to optimiser, and how deep does a network "
    "stay affordable at a mini-batch of 4?"
)
NETWORK = {"policy": "policy", "num_layers": "layers", "batch_size": "mini-batch"}
SPEED = {
    "stack_ms": "stack, ms",
    "stack_graph_ms": "as a graph",
    "ordinary_stack_ms": "ordinary",
    "stack_speedup": "×",
    "stack_speedup_less_matrix": "× less its matrix",
    "step_ms": "step, ms",
    "step_graph_ms": "as a graph",
    "ordinary_step_ms": "ordinary",
    "step_speedup": "×",
}
LIMITS = {
    "audio_seconds_per_second": "audio s/s",
    "activation_ratio": "activations, ×",
    "recurrence_ms": "recurrence, ms",
    "products_ms": "products, ms",
    "over_roofline": "stack over both, ×",
    "stack_host_ms": "host, ms",
}


def write_record(output: Path, rows: Sequence[Row], trainings: Sequence[Row], device: Any) -> None:
    """whole_step.json (rows, trainings of a thousand layers, requirements, circumstances) and table.csv (the rows)."""
    output.mkdir(parents=True, exist_ok=True)
    lines = [asdict(line) for line in requirements(rows, trainings)]
    record = {**facts_of(device.type), "rows": list(rows), "trainings": list(trainings), "requirements": lines}
    write_atomically(output / "whole_step.json", json.dumps(record, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(output / "table.csv", text.getvalue())


def write_page(output: Path, rows: Sequence[Row], trainings: Sequence[Row], device: Any) -> None:
    """report.html."""
    from experiments.report.sections import write_document

    write_document(output / "report.html", document(rows, trainings, facts_of(device.type)))


def print_requirements(lines: Sequence[Requirement]) -> None:
    """Required against measured."""
    table = [(line.name, line.required, line.aimed and f"aimed {line.aimed}", line.measured) for line in lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line, cells in zip(lines, table, strict=True):
        padded = "  ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True))
        print(f"{padded}  {VERDICTS[line.met]}")


def print_row(row: Row) -> None:
    """One line."""
    names = {"precision": "precision", **NETWORK, **SPEED, **LIMITS, "backend": "", "graph": "graph:"}
    print("; ".join(f"{name} {cell(row, key)}".strip() for key, name in names.items()))
    for whose, key in (("", "parts_ms"), ("ordinary layers', ", "ordinary_parts_ms")):
        if row[key]:
            parts = ", ".join(f"{name} {ms:.1f}" for name, ms in row[key].items())
            print(f"    {whose}parts of a step, ms: {parts}")
    sys.stdout.flush()


def document(rows: Sequence[Row], trainings: Sequence[Row], facts: dict[str, str]) -> Any:
    """The page."""
    from experiments.report.sections import Card, Document

    first = rows[0]
    sections = [required_section(requirements(rows, trainings))]
    sections += [
        network_section([row for row in rows if row["precision"] == precision], number)
        for number, precision in enumerate(dict.fromkeys(row["precision"] for row in rows))
    ]
    sections += [training_section(trainings)] if trainings else []
    cards = [
        Card(
            f"{row['num_layers']} layers, mini-batch {row['batch_size']}",
            f"{row['stack_speedup']:.1f} ×",
            f"the speed of ordinary layers, stack forward and backward, {row['precision']}",
        )
        for row in rows
        if row["stack_speedup"] is not None
        and row["policy"] == first["policy"]
        and row["num_layers"] == max(r["num_layers"] for r in rows)
    ]
    shown = {key: value for key, value in facts.items() if key != "command"}
    status = f"{len(rows)} networks on {facts['device']}, recurrence: {first['backend']}"
    sections = [section for section in sections if section.tables]
    return Document("A whole training step", QUESTION, status, sections, cards, shown, facts["command"])


def required_section(lines: Sequence[Requirement]) -> Any:
    """What was measured of what is required."""
    from experiments.report.sections import Section, TextTable

    cells = [
        (line.name, line.required, line.aimed, line.measured, VERDICTS[line.met])
        for line in lines
        if line.met is not None
    ]
    header = ("what", "required", "aimed at", "measured", "")
    tables = [TextTable("", "", header, cells, words=frozenset({0, 1}))] if cells else []
    return Section("Required and measured", tables=tables)


def network_section(rows: Sequence[Row], number: int) -> Any:
    """All networks of one precision."""
    from experiments.report.sections import Figure, Section, TextTable

    figures = [
        Figure(f"stack-{number}", "Forward and backward of the stack", "Milliseconds.", times(rows)),
        Figure(f"parts-{number}", "Where a step's time goes", "Kernels of one profiled step.", bars(rows)),
    ]
    tables = []
    for title, caption, columns in (
        ("Speed", f"CUDA graphs: {' '.join(dict.fromkeys(row['graph'] for row in rows))}", SPEED),
        ("What bounds it", "", LIMITS),
    ):
        names = {key: name for key, name in (NETWORK | columns).items() if any(row[key] is not None for row in rows)}
        cells = [[cell(row, key) for key in names] for row in rows]
        tables.append(TextTable(title, caption, [*names.values()], cells, words=frozenset({0})))
    title = f"{rows[0]['hidden_size']} units, precision {rows[0]['precision']}"
    return Section(title, figures=figures, tables=tables)


def training_section(trainings: Sequence[Row]) -> Any:
    """A thousand layers."""
    from experiments.report.sections import Section, TextTable

    cells = [
        (
            one["policy"],
            f"{one['num_layers']:,}",
            str(one["hidden_size"]),
            one["precision"],
            f"{one['learning_rate']:g}",
            str(len(one["losses"])),
            f"{one['losses'][0]:.4g}",
            f"{one['losses'][-1]:.4g}",
            f"{one['step_ms']:.0f}",
            "–" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**30:.1f}",
        )
        for one in trainings
    ]
    header = ("policy", "layers", "units", "precision", "rate", "steps", "first loss", "last", "ms a step", "peak, GiB")
    table = TextTable("", "One batch of noise, learnt by heart.", header, cells, words=frozenset({0}))
    return Section("Depth that trains", tables=[table])


def cell(row: Row, key: str) -> str:
    """A number as the tables show it."""
    value = row[key]
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return str(value)
