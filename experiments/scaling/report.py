"""The scaling experiment's results: scaling.json, table.csv and the page; beside the paper's figure 5."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.report.sections import Card, Document, Figure, Section, TextTable, write_document
from experiments.run.result import write_atomically
from experiments.scaling import figures

Row = dict[str, Any]
QUESTION = (
    "How far does one training step spread over GPUs? A kernel that is efficient at a per-GPU mini-batch of 4 lets an "
    "algorithmic batch of 512 run on 128 GPUs; what then bounds it is the all-reduce."
)
COLUMNS = (
    "source",
    "mode",
    "interconnect",
    "devices",
    "batch_size",
    "accumulation",
    "global_batch_size",
    "step_ms",
    "compute_ms",
    "exposed_ms",
    "hidden_ms",
    "extra_ms",
    "optimizer_ms",
    "utterances_per_second",
    "tflops",
    "efficiency",
)


def write_results(output: Path, record: dict[str, Any]) -> None:
    """scaling.json, table.csv (one row a point of a curve) and report.html."""
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / "scaling.json", json.dumps(record, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(record["rows"])
    write_atomically(output / "table.csv", text.getvalue())
    write_document(output / "report.html", document(record))


def print_summary(record: dict[str, Any]) -> None:
    """The errors, and the end of each curve."""
    for row in record["errors"]:
        if row["held_out"]:
            print(
                f"left out: {row['devices']} devices x {row['batch_size']}: measured {row['measured'] * 1e3:.1f} ms, "
                f"predicted {row['predicted'] * 1e3:.1f} ms ({row['error']:+.1%})"
            )
    for row in ends(record["rows"]):
        tflops = f"{row['tflops']:,.0f}" if row["tflops"] >= 100 else f"{row['tflops']:.3g}"
        print(
            f"{row['mode']} over {row['interconnect']}: {row['devices']} devices x {row['batch_size']:g}, "
            f"{row['step_ms']:,.1f} ms a step, {tflops} TFLOP/s, efficiency {row['efficiency']:.0%} (model)"
        )


def ends(rows: Sequence[Row]) -> list[Row]:
    """The last point of each modelled curve."""
    last: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["source"] == "model":
            last[row["mode"], row["interconnect"]] = row
    return list(last.values())


def document(record: dict[str, Any]) -> Document:
    """The page."""
    spec = record["compute_spec"]
    network = f"{spec['num_layers']} layers of {spec['hidden_size']} units, {spec['precision']}"
    batch = record["options"]["global_batch_size"]
    sections = [strong_section(record, network, batch), efficiency_section(record), step_section(record, batch)]
    if record["errors"]:
        sections.append(error_section(record))
    sections += [measured_section(record), assumption_section(record)]
    measured = ", ".join(str(one["world_size"]) for one in record["measured"])
    return Document(
        title="Scaling by number of GPUs",
        question=QUESTION,
        status=f"Measured on {measured} devices, modelled to {record['options']['most_gpus']:,}; {network}",
        sections=sections,
        cards=cards(record),
        facts={
            "Compute times": record["compute_source"],
            "Measured on": "; ".join(sorted({f"{one['device']}, {one['library']}" for one in record["measured"]})),
            "Commit": record["commit"] or "not a git checkout",
            "Versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        },
        command=record["command"],
    )


def cards(record: dict[str, Any]) -> list[Card]:
    """The worst left-out error, and the ends of the curves over the first interconnect."""
    found = []
    left_out = [row for row in record["errors"] if row["held_out"]]
    if left_out:
        worst = max(left_out, key=lambda row: abs(row["error"]))
        note = f"of {len(left_out)} left-out steps, at {worst['devices']} x {worst['batch_size']}"
        found.append(Card("Worst error of a left-out step", f"{abs(worst['error']):.1%}", note))
    first = record["interconnects"][0]["name"]
    for row in ends(record["rows"]):
        if row["interconnect"] == first:
            value = f"{row['efficiency']:.0%}"
            note = f"{row['devices']:,} GPUs x {row['batch_size']:g} over {first}, modelled"
            found.append(Card(f"Efficiency, {row['mode']} scaling", value, note))
    return found


def drawn(record: dict[str, Any]) -> list[Row]:
    """The points of the curves' figures: measured ones only where they are of the devices that are extended."""
    return [row for row in record["rows"] if row["source"] == "model" or record["measured_is_extended"]]


def strong_section(record: dict[str, Any], network: str, batch: int) -> Section:
    """The paper's figure 5 and its zoom."""
    rows = drawn(record)
    caption = (
        f"Algorithmic batch {batch}; {network}. TFLOP/s count the two matrices of each recurrent layer, forward and "
        "backward. Dashed: perfect scaling. Crosses: the paper's own network and GPUs (Titan X, 48 layers, fp32). "
        "Interconnects whose all-reduce hides lie on one another."
    )
    zoom = (
        "The same points by what one GPU is left with: milliseconds a step at per-GPU batches up to 16. "
        "Perfect scaling would halve the time with the batch."
    )
    return Section(
        "Strong scaling: one algorithmic batch over more GPUs",
        figures=[
            Figure("strong", "The whole range", caption, figures.strong(rows)),
            Figure("zoom", "The smallest per-GPU batches", zoom, figures.zoom(rows)),
        ],
    )


def efficiency_section(record: dict[str, Any]) -> Section:
    """Efficiency of both modes."""
    weak = record["options"]["weak_batch_size"]
    return Section(
        "Efficiency",
        "Speed a GPU, against the curve's first point. Filled points were measured, lines are the model.",
        figures=[
            Figure("efficiency-strong", "Strong scaling", "Falls for two reasons: small batches fill a GPU badly, and "
                   "the all-reduce no longer hides.", figures.efficiency(drawn(record), "strong")),
            Figure("efficiency-weak", "Weak scaling", f"Per-GPU batch {weak}: only the all-reduce changes.",
                   figures.efficiency(drawn(record), "weak", batch_size=weak)),
        ],
    )  # fmt: skip


def step_section(record: dict[str, Any], batch: int) -> Section:
    """What a step consists of over the first interconnect."""
    first = record["interconnects"][0]["name"]
    return Section(
        "Where a step's time goes",
        figures=[
            Figure(f"parts-{mode}", f"{mode.capitalize()} scaling over {first}", words, figures.parts(rows))
            for mode, words in (
                ("strong", f"Algorithmic batch {batch}."),
                ("weak", f"Per-GPU batch {record['options']['weak_batch_size']}."),
            )
            if (rows := [r for r in record["rows"] if r["mode"] == mode and r["interconnect"] == first])
        ],
    )


def error_section(record: dict[str, Any]) -> Section:
    """The model against what was measured."""
    fit = record["fit"]
    steps = TextTable(
        "Steps",
        "A left-out step was predicted by a model that knew neither its compute nor its time.",
        ("devices", "per-device batch", "measured, ms", "predicted, ms", "error", "how"),
        [
            [
                str(row["devices"]),
                str(row["batch_size"]),
                f"{row['measured'] * 1e3:.1f}",
                f"{row['predicted'] * 1e3:.1f}",
                f"{row['error']:+.1%}",
                "left out" if row["held_out"] else "fitted",
            ]
            for row in record["errors"]
        ],
        words=frozenset({5}),
    )
    messages = TextTable(
        "All-reduce",
        f"Fitted: {fit['seconds_per_hop'] * 1e6:.1f} µs a hop and {fit['bytes_per_second'] / 1e9:.2f} GB/s. Steps: "
        f"{fit['contention']:.2f} s of compute lost a second of hidden communication, "
        f"{fit['overhead_seconds'] * 1e3:.1f} ms overhead a step.",
        ("bytes", "measured, ms", "lowest", "highest", "fitted, ms", "error"),
        [
            [
                f"{row['bytes']:,}",
                *(f"{row[key] * 1e3:.3f}" for key in ("seconds", "low", "high", "predicted")),
                f"{row['error']:+.1%}",
            ]
            for row in record["all_reduce"]
        ],
    )
    return Section(
        "How well the model knows what was measured",
        figures=[
            Figure("errors", "Steps", "Measured against predicted.", figures.errors(record["errors"])),
            Figure("messages", "All-reduce by message size", "Points: measured; line: fit.",
                   figures.messages(record["all_reduce"])),
        ],
        tables=[steps, messages],
    )  # fmt: skip


def measured_section(record: dict[str, Any]) -> Section:
    """The measured parts, as they were."""
    rows = [
        [
            str(one["world_size"]),
            str(part["batch_size"]),
            *(f"{part[key] * 1e3:.1f}" for key in ("forward", "backward", "optimizer")),
            *(f"{whole[key] * 1e3:.1f}" for key in ("seconds", "low", "high")),
        ]
        for one in record["measured"]
        for part, whole in zip(one["compute"], one["step"], strict=True)
    ]
    header = ("devices", "per-device batch", "forward", "backward", "optimiser", "whole step", "lowest", "highest")
    caption = "Milliseconds; lower quartile over the rounds. The parts were measured without communication."
    return Section("What was measured", tables=[TextTable("Steps and their parts", caption, header, rows)])


def assumption_section(record: dict[str, Any]) -> Section:
    """What was not measured."""
    rows = [
        [
            net["name"],
            str(net["gpus_per_node"]),
            f"{net['gpu_bandwidth'] / 1e9:g}",
            f"{net['node_bandwidth'] / 1e9:g}",
            net["source"],
        ]
        for net in record["interconnects"]
    ]
    table = TextTable(
        "Interconnects",
        "Bandwidths in GB/s in one direction: of one GPU inside its node, and of all cards of one node together.",
        ("name", "GPUs a node", "GPU", "node", "source"),
        rows,
        words=frozenset({0, 4}),
    )
    text = (
        "Everything beyond the measured devices stands on these. Compute does not slow down with the number of GPUs, "
        "every GPU's utterances are equally long, and batch statistics stay local."
    )
    return Section("Assumptions", text, tables=[table])
