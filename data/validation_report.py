"""A validation as a table on the terminal, a JSON file and two plots."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from data.findings import KINDS, exit_code
from data.validate import Checks, Line, Validation

EXAMPLES = 3  # of each kind, on the terminal; the JSON has all


def summary(validation: Validation, checks: Checks) -> dict[str, Any]:
    """All of it in plain values: hours and lengths of each manifest, characters, findings."""
    texts = Counter(character for line in validation.lines for character in line.text)
    return {
        "exit_code": exit_code(validation.findings),
        "decoded": checks.decode,
        "manifests": {
            name: _of_manifest([line for line in validation.lines if line.manifest == name], checks)
            for name in validation.manifests
        },
        "characters": dict(sorted(texts.items())),
        "unknown_characters": {c: n for c, n in sorted(texts.items()) if checks.vocabulary.complaint([c])},
        "kinds": dict(Counter(finding.kind for finding in validation.findings)),
        "findings": [
            {
                "kind": finding.kind,
                "severity": finding.severity,
                "manifest": finding.manifest,
                "line": finding.line,
                "id": finding.id,
                "message": finding.message,
            }
            for finding in validation.findings
        ],
    }


def _of_manifest(lines: list[Line], checks: Checks) -> dict[str, Any]:
    durations = np.array([line.utterance.duration for line in lines])
    speakers = {line.utterance.speaker for line in lines if line.utterance.speaker is not None}
    facts: dict[str, Any] = {
        "utterances": len(lines),
        "hours": float(durations.sum()) / 3600,
        "speakers": len(speakers) or None,
        "words": sum(len(line.text.split()) for line in lines),
        "characters": sum(len(line.text) for line in lines),
        "sample_rates": dict(Counter(str(line.sound.sample_rate) for line in lines if line.sound)),
    }
    if len(durations):
        low, middle, high = np.percentile(durations, [0, 50, 100])
        facts["seconds"] = {"shortest": float(low), "median": float(middle), "longest": float(high)}
    return facts


def write_json(validation: Validation, checks: Checks, path: Path) -> None:
    """The summary as a file, renamed into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(summary(validation, checks), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def print_tables(validation: Validation, checks: Checks) -> None:
    """Manifests, then findings by kind with examples."""
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    report = summary(validation, checks)
    manifests = Table(Column("manifest", overflow="fold", min_width=24), title="Manifests; seconds of an utterance")
    for name in ("lines", "hours", "speakers", "least", "median", "most"):
        manifests.add_column(name, justify="right")
    for name, facts in report["manifests"].items():
        seconds = [f"{value:.2f}" for value in facts.get("seconds", {}).values()] or ["-"] * 3
        manifests.add_row(
            name, str(facts["utterances"]), f"{facts['hours']:.3f}", str(facts["speakers"] or "-"), *seconds
        )
    console.print(manifests)
    if not validation.findings:
        console.print("No findings." if checks.decode else "No findings (headers alone; --decode reads all audio).")
        return
    findings = Table("finding", "severity", title="Findings")
    findings.add_column("lines", justify="right")
    findings.add_column("such as", overflow="fold")
    for kind in (kind for kind in KINDS if kind in report["kinds"]):
        examples = [finding for finding in validation.findings if finding.kind == kind][:EXAMPLES]
        such = "\n".join(
            f"{e.manifest}:{e.line}: {e.message}" if e.line else f"{e.manifest}: {e.message}" for e in examples
        )
        findings.add_row(kind, KINDS[kind], str(report["kinds"][kind]), such)
    console.print(findings)


def write_plots(validation: Validation, folder: Path) -> list[Path]:
    """`durations.svg` and `characters_per_second.svg`, a line a manifest."""
    import altair

    folder.mkdir(parents=True, exist_ok=True)
    rates = "characters_per_second"
    values = {
        "durations": ("seconds", lambda line: line.utterance.duration),
        rates: ("characters a second", lambda line: len(line.text) / line.utterance.duration),
    }
    paths = []
    for name, (title, value) in values.items():
        rows = _histogram(validation, value)
        chart = (
            altair.Chart(altair.InlineData(rows))
            .mark_line(interpolate="step-after")
            .encode(
                x=altair.X("value:Q", title=title),
                y=altair.Y("share:Q", title="share of utterances", axis=altair.Axis(format="%")),
                color=altair.Color("manifest:N", title=None),
            )
            .properties(width=480, height=240, title=name.replace("_", " "))
        )
        chart.save(str(folder / f"{name}.svg"))
        paths.append(folder / f"{name}.svg")
    return paths


def _histogram(validation: Validation, value: Any) -> list[dict[str, Any]]:
    edges = np.histogram_bin_edges([value(line) for line in validation.lines] or [0.0], bins=60)
    rows = []
    stems = [Path(name).stem for name in validation.manifests]
    for name, stem in zip(validation.manifests, stems, strict=True):
        label = stem if stems.count(stem) == 1 else name
        values = [value(line) for line in validation.lines if line.manifest == name]
        shares = np.histogram(values, edges)[0] / max(1, len(values))
        rows += [
            {"manifest": label, "value": float(edge), "share": float(share)}
            for edge, share in zip(edges[:-1], shares, strict=True)
        ]
    return rows
