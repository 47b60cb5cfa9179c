"""One self-contained page of a study: opens from disk, asks the network for nothing, reads on a phone and in print.

Vega's script is embedded once for all figures; every figure is a JSON block beside it. The page is made of rows of the
tidy table and the runs' decimated curves, nothing else, so it can be made again at any time, and in mid-study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.report import curves as training
from experiments.report import figures, findings
from experiments.report.assets import asset, script_json, vega
from experiments.report.bootstrap import DRAWS
from experiments.report.comparisons import Comparison, compared, points
from experiments.report.findings import bytes_words, spread_words
from experiments.report.paper import SOURCE, PaperTable
from experiments.report.run_table import columns_of
from experiments.report.table import Row, is_lost
from experiments.run.result import write_atomically


@dataclass(frozen=True)
class Study:
    """What a page tells: `rows` of the tidy table, folders relative to `root`, by `axis` (and `group`, if any)."""

    title: str
    question: str
    command: str
    rows: Sequence[Row]
    root: Path
    axis: figures.Axis = figures.DEPTH
    group: str | None = None
    paper: tuple[PaperTable, ...] = ()
    # A live page asks its server whether there is news, and shows it.
    live: bool = False


def write_page(path: Path, study: Study) -> None:
    """Make the page and write it in one move."""
    write_atomically(path, render(study))


def render(study: Study) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(asset("page.html.j2"))
    content = _content(study)
    for name in ("css", "js", "vega"):
        content[name] = Markup(content[name])
    for name in ("curves", "run_groups"):
        content[name] = Markup(script_json(content[name]))
    content["specs"] = [(key, Markup(script_json(spec))) for key, spec in content["specs"]]
    return template.render(content)


def figure_specs(study: Study) -> dict[str, dict[str, Any]]:
    """The study's figures as Vega-Lite, by name; also what `figures/*.svg` is drawn from."""
    rows, axis, group = study.rows, study.axis, study.group
    charts = {
        "wer": figures.word_error_rate(rows, axis, group),
        "memory": figures.memory(rows, axis),
        "throughput": figures.metric(rows, axis, "audio_seconds_per_second", "audio seconds per second", group=group,
                                     colour=figures.theme.GREEN),
    }  # fmt: skip
    if axis.numeric:
        charts["trade-off"] = figures.trade_off(rows, axis, group)
    charts |= {f"paper-{table.key}": figures.paper(table) for table in study.paper}
    return {name: chart.to_dict() for name, chart in charts.items()}


def difference_spec(comparisons: Sequence[Comparison]) -> dict[str, dict[str, Any]]:
    """The figure of differences from the best; none where nothing can be compared."""
    shown = [one for one in comparisons if one.best is not None]
    return {"differences": figures.differences(shown).to_dict()} if shown else {}


def write_figures(folder: Path, study: Study) -> None:
    """Each figure as SVG and PNG (twice the size), for a README or a talk; black on white."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    for name, spec in figure_specs(study).items():
        fixed = {**spec, "width": 460, "background": "white"}
        (folder / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(fixed), encoding="utf-8")
        (folder / f"{name}.png").write_bytes(vl_convert.vegalite_to_png(fixed, scale=2.0))


def _content(study: Study) -> dict[str, Any]:
    rows = list(study.rows)
    keys = [study.axis.column, *([study.group] if study.group else [])]
    found = findings.groups(rows, keys)
    best = findings.best(found)
    columns = columns_of(study.rows, (study.axis.column, study.group))
    comparisons = compared(rows, found, best, study.root)
    curves = training.read_curves(rows, study.root)
    drawn = set(training.shown_at_first(rows, study.axis.column, curves))
    names = [str(one) for one in dict.fromkeys(group.values[study.axis.column] for group in found)]
    curve_specs = {
        metric: figures.curve(
            title,
            names,
            logarithmic=training.is_logarithmic(curves, metric),
            smoothed=training.smoothing(curves, metric),
            legend=study.axis.title,
        ).to_dict()
        for metric, title in training.METRICS.items()
        if any(metric in run for run in curves.values())
    }
    return {
        "study": study,
        "status": findings.status_sentence(rows),
        "made": datetime.now(UTC).strftime("%-d %B %Y, %H:%M UTC"),
        "cards": _cards(study, best),
        "wer_caption": _wer_caption(found, any(is_lost(row) for row in rows)),
        "memory_caption": _memory_caption(study),
        "curves_caption": _curves_caption(len(drawn), len(curves)),
        "any_interval": any(group.wer is not None and group.wer.low is not None for group in found),
        "has_best": best is not None,
        "any_finished": any(group.finished for group in found),
        "comparisons": [
            {"name": one.words, "best": points(one.best), "before": points(one.before)} for one in comparisons
        ],
        "any_before": any(one.before is not None for one in comparisons),
        "has_differences": any(one.best is not None for one in comparisons),
        "draws": DRAWS,
        "narrow_summary": study.axis.numeric and study.group is None,
        "summary": _summary(study, found, best),
        "curve_specs": bool(curve_specs),
        "curve_titles": [(metric, training.METRICS[metric]) for metric in curve_specs],
        "paper_tables": study.paper,
        "paper_source": SOURCE,
        "troubles": [row for row in rows if is_lost(row)],
        "columns": columns,
        "rows": [
            {
                "folder": row["folder"],
                "name": row["name"],
                "has_curve": row["folder"] in curves,
                "drawn": row["folder"] in drawn,
                "cells": [column.cell(row) for column in columns],
            }
            for row in rows
        ],
        "environment": _environment(rows),
        "reproduce": _reproduce(study),
        "specs": [*figure_specs(study).items(), *curve_specs.items(), *difference_spec(comparisons).items()],
        "curves": curves,
        "run_groups": {
            row["folder"]: {"name": row["name"], "group": str(row.get(study.axis.column))}
            for row in rows
            if row["folder"] in curves
        },
        "css": asset("page.css"),
        "js": asset("page.js") + (asset("live.js") if study.live else ""),
        "vega": vega(),
    }


def _cards(study: Study, best: findings.Group | None) -> list[dict[str, Any]]:
    if best is None or best.wer is None or best.val_wer is None:
        return []
    # A name of one long word may be broken after its underscores.
    best_words = findings.words(best).replace("_", "_\u200b")
    lost = "" if best.finished == best.runs else f"; {best.runs - best.finished} of {best.runs} runs did not finish"
    seeds = "1 seed" if best.wer.count == 1 else f"mean of {best.wer.count} seeds"
    bounds = f", 95 % within {spread_words(best.wer, 100).partition(' ')[2]}" if best.wer.low is not None else ""
    kinds = {row["peak_memory_source"] for row in study.rows if row["peak_memory_source"]}
    speed = best.mean("audio_seconds_per_second")
    counted = f"; {best.errors:,} errors in {best.words:,} words" if best.words else ""
    cards = [
        ("Best on the dev set", best_words, f"lowest mean dev WER, {100 * best.val_wer.mean:.1f} %{lost}"),
        ("Test WER there", f"{100 * best.wer.mean:.1f} %", f"{seeds}{bounds}{counted}"),
        ("Peak memory there", bytes_words(best.mean("peak_memory_bytes")), " and ".join(sorted(kinds))),
        ("Throughput there", "–" if speed is None else f"{speed:,.0f} s/s", "seconds of audio a second, training"),
    ]
    return [{"label": label, "value": value, "note": note, "long": len(value) > 16} for label, value, note in cards]


def _wer_caption(found: Sequence[findings.Group], lost: bool) -> str:
    most = max((group.wer.count for group in found if group.wer), default=0)
    crosses = " Crosses on the upper edge did not finish." if lost else ""
    if most >= 3:
        return f"Each point is one seed; bars are 95 % intervals of the mean (Student’s t).{crosses}"
    many = "one seed" if most == 1 else f"{most} seeds, too few for an interval"
    return (
        f"Test set, at the checkpoint best on dev. Each point is one run ({many}); the line joins the means.{crosses}"
    )


def _memory_caption(study: Study) -> str:
    sources = {row["peak_memory_source"] for row in study.rows if row["peak_memory_source"]}
    said = "Peak memory is accounted: parameters, gradients, optimiser state and what is saved for backward."
    if sources == {"measured"}:
        said = "Peak memory is the most that the GPU had allocated."
    increase = findings.slope(study.rows, study.axis.column, "saved_bytes") if study.axis.numeric else None
    if increase is not None and study.axis.column == "num_layers":
        said += f" A layer adds {bytes_words(increase)} to what is saved."
    return said


def _curves_caption(drawn: int, available: int) -> str:
    which = "All runs" if drawn == available else f"{drawn} of {available:,} runs"
    return (
        f"{which}; the boxes in the table of runs below choose which are drawn. "
        "The training loss is that of single batches (faint) and its running mean."
    )


def _summary(study: Study, found: Sequence[findings.Group], best: findings.Group | None) -> dict[str, Any]:
    keys = [study.axis.column, *([study.group] if study.group else [])]
    header = [*(findings.noun(key) for key in keys), *findings.SUMMARY_HEADER]
    return {
        "header": header,
        "rows": [{"cells": findings.summary_cells(group), "best": group is best} for group in found],
    }


def _environment(rows: Sequence[Row]) -> list[tuple[str, str]]:
    names = {
        "device": "Device",
        "backend": "Recurrence",
        "precision": "Precision",
        "commit": "Commit",
        "started": "Started",
    }
    said = []
    for column, title in names.items():
        values = sorted({str(row[column]) for row in rows if row.get(column)})
        if column == "started" and len(values) > 1:
            values = [f"{values[0]} to {values[-1]}"]
        if values:
            said.append((title, ", ".join(values)))
    seconds = sum(row["wall_seconds"] or 0 for row in rows)
    time = f"{seconds / 3600:,.2f} h" if seconds >= 3600 else findings.time_words(seconds)
    return [*said, ("Training time", f"{time} over all runs")]


def _reproduce(study: Study) -> str:
    commits = sorted({row["commit"] for row in study.rows if row.get("commit")})
    checkout = f"git checkout {commits[0].removesuffix('-dirty')}\n" if len(commits) == 1 else ""
    return checkout + study.command
