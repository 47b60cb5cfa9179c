"""The batch-size study's results: batch_size.json, table.csv and the page; beside the paper's figure 8."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from experiments.batch_size import figures
from experiments.report.sections import Card, Document, Figure, Section, TextTable, write_document
from experiments.run.result import write_atomically

QUESTION = (
    "How large may the algorithmic batch - the sum over GPUs and accumulation - become before more samples are needed "
    "for the same loss? That bounds the number of GPUs."
)


def write_results(root: Path, record: dict[str, Any]) -> None:
    """batch_size.json, table.csv (one row a run), report.html."""
    write_atomically(root / "batch_size.json", json.dumps(record, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(record["rows"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(record["rows"])
    write_atomically(root / "table.csv", text.getvalue())
    write_document(root / "report.html", document(record))


def print_summary(record: dict[str, Any]) -> None:
    """A line a batch size."""
    print(f"to a dev loss of {record['target_loss']:.4g}:")
    for one in record["curve"]:
        edge = ", at the edge of the grid" if one["at_edge"] else ""
        samples, steps = (words(one[f"{key}_to_target"], one["upper_bound"]) for key in ("samples", "steps"))
        print(
            f"  batch {one['global_batch_size']:>5}: {samples} samples, {steps} steps, lowest loss "
            f"{one['lowest_loss']:.4g} (learning rate {one['learning_rate']:g}{edge})"
        )
    print(f"critical batch of the fitted trade-off: {critical_words(record)}")
    for one in record["noise_scale"]:
        print(f"  noise scale at the best checkpoint of batch {one['global_batch_size']}: {noise_words(one)}")


def words(value: float | None, upper_bound: bool = False) -> str:
    """A count, or that it was not reached."""
    return "not reached" if value is None else f"{'≤ ' if upper_bound else ''}{value:,.0f}"


def count_words(value: float) -> str:
    """Three significant digits, never with an exponent."""
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def noise_words(one: dict[str, Any]) -> str:
    """The noise scale with its interval."""
    if one["noise_scale"] is None:
        return "not measurable (no signal above the noise)"
    interval = "" if one["low"] is None else f" ({count_words(one['low'])} to {count_words(one['high'])})"
    return f"{count_words(one['noise_scale'])} utterances{interval}"


def critical_words(record: dict[str, Any]) -> str:
    """The fitted critical batch in words."""
    fitted = record["critical_batch"]
    if fitted is None:
        return "not fitted: fewer than three sizes reached the target"
    if fitted["batch"] is None:
        return f"above {max(one['global_batch_size'] for one in record['curve']):,}: samples do not grow with the batch"
    return f"{count_words(fitted['batch'])} utterances"


def document(record: dict[str, Any]) -> Document:
    """The page."""
    finished = sum(row["status"] == "finished" for row in record["rows"])
    target, given = record["target_loss"], record["target_given"]
    chosen = "given" if given else "the lowest that every batch size reached"
    return Document(
        title="Samples and steps by algorithmic batch",
        question=QUESTION,
        status=f"{finished} of {len(record['rows'])} runs finished; target dev loss {target:.4g} ({chosen}); "
        f"per-device batch {record['per_device_batch_size']} throughout",
        sections=[
            curve_section(record),
            way_section(record),
            loss_section(record),
            noise_section(record),
            *run_sections(record),
        ],
        cards=cards(record),
        facts={
            "Commit": record["commit"] or "not a git checkout",
            "Versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
            "Written": record["written"],
        },
        command=record["command"],
    )


def cards(record: dict[str, Any]) -> list[Card]:
    """The critical batch, the noise scale, and the range without loss."""
    found = [Card("Critical batch", critical_words(record).partition(":")[0], "of the trade-off fitted to the samples")]
    scales = [one["noise_scale"] for one in record["noise_scale"] if one["noise_scale"]]
    if scales:
        ends = [count_words(end) for end in (min(scales), max(scales))]
        span = " to ".join(dict.fromkeys(ends))
        found.append(Card("Gradient noise scale", span, "utterances, at the best checkpoints"))
    reached = [one for one in record["curve"] if one["samples_to_target"]]
    if reached:
        least = min(one["samples_to_target"] for one in reached)
        good = [one["global_batch_size"] for one in reached if one["samples_to_target"] <= 1.1 * least]
        note = "needed at most 10 % more samples than the best size"
        found.append(Card("Largest batch without cost", f"{max(good):,}", note))
    return found


def curve_section(record: dict[str, Any]) -> Section:
    """The two curves and their numbers."""
    curve, fitted, noise = record["curve"], record["critical_batch"], record["noise_scale"]
    caption = (
        "Learning rate re-tuned for each size. Dashed: the fitted trade-off. Shaded: the range of measured noise "
        "scales. Crosses on the upper edge did not reach the target."
    )
    table = TextTable(
        "The curve",
        "Means over the seeds (lowest and highest in brackets) at the rate that needs the fewest samples. ≤: below the "
        "target at the first validation already.",
        ("batch", "samples to target", "steps to target", "lowest dev loss", "learning rate", "seeds", "rate's place"),
        [
            [
                f"{one['global_batch_size']:,}",
                words(one["samples_to_target"], one["upper_bound"])
                + (
                    f" ({one['low_samples']:,.0f} to {one['high_samples']:,.0f})"
                    if one["samples_to_target"] and one["seeds"] > 1
                    else ""
                ),
                words(one["steps_to_target"], one["upper_bound"]),
                f"{one['lowest_loss']:.4g}",
                f"{one['learning_rate']:g}",
                str(one["seeds"]),
                "edge of the grid" if one["at_edge"] else "inside",
            ]
            for one in curve
        ],
        words=frozenset({6}),
    )
    return Section(
        "To the same loss",
        figures=[
            Figure(key, title, caption, figures.to_target(curve, f"{key}_to_target", key, fitted, noise))
            for key, title in (("samples", "Samples"), ("steps", "Optimiser steps"))
        ],
        tables=[table],
    )


def way_section(record: dict[str, Any]) -> Section:
    """Where the samples to the target were read off."""
    caption = "Each size at its best learning rate, a line a seed, a point a validation. Dashed: the target."
    chart = figures.on_the_way(record["rows"], record["losses"], record["curve"], record["target_loss"])
    return Section("On the way there", figures=[Figure("way", "Dev loss by samples", caption, chart)], columns=1)


def loss_section(record: dict[str, Any]) -> Section:
    """Loss at a fixed budget, beside the paper."""
    return Section(
        "Within the same number of samples",
        figures=[
            Figure("loss", "Lowest dev loss", "Circles: every run; joined: the best learning rate of each size.",
                   figures.loss(record["rows"], record["curve"])),
            Figure("paper", "The paper’s figure 8", "Diamos et al. 2016, read off; flat below 512. Another corpus and "
                   "network: compare the shape.", figures.paper()),
            Figure("rates", "By learning rate", "Each size needs its own.", figures.by_rate(record["rows"])),
        ],
        columns=3,
    )  # fmt: skip


def noise_section(record: dict[str, Any]) -> Section:
    """The noise scale's numbers."""
    rows = [
        [
            f"{one['global_batch_size']:,}",
            noise_words(one),
            count_words(one["signal"]),
            count_words(one["noise"]),
            f"{one['small_batch']} and {one['big_batch']}",
            str(one["groups"]),
        ]
        for one in record["noise_scale"]
    ]
    text = (
        "Simple noise scale (McCandlish et al. 2018): trace of the gradient's covariance over its squared norm, from "
        "gradients at two batch sizes, without bias. It says where the critical batch is to be expected for plain SGD."
    )
    header = ("trained at batch", "noise scale (95 %)", "|G|²", "trace of noise", "gradients at", "groups")
    tables = [TextTable("At the best checkpoint of each size", "", header, rows, words=frozenset({1}))] if rows else []
    return Section("Gradient noise scale", text if rows else "Not measured (--noise-groups 0).", tables=tables)


def run_sections(record: dict[str, Any]) -> list[Section]:
    """All runs, and what did not finish."""
    header = ("batch", "learning rate", "seed", "status", "samples to target", "lowest dev loss", "dev WER, %", "why")
    rows = [
        [
            f"{row['global_batch_size']:,}",
            f"{row['learning_rate']:g}",
            str(row["seed"]),
            row["status"],
            words(row["samples_to_target"]),
            "–" if row["lowest_val_loss"] is None else f"{row['lowest_val_loss']:.4g}",
            "–" if row["val_wer"] is None else f"{100 * row['val_wer']:.1f}",
            row["reason"] or "",
        ]
        for row in record["rows"]
    ]
    return [Section("All runs", tables=[TextTable("Grid", "", header, rows, words=frozenset({3, 7}))])]
