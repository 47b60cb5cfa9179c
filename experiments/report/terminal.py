"""The summary of a study on the terminal: the same means as on the page, in a rich table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group as Together
from rich.table import Table
from rich.text import Text

from experiments.report import findings
from experiments.report.comparisons import compared, points
from experiments.report.figures import Axis
from experiments.report.findings import bytes_words, spread_words
from experiments.report.table import Row, is_lost


def summary_table(rows: Sequence[Row], axis: Axis, root: Path, group: str | None = None) -> Together:
    """A line for each value of what is varied, then one for each run that did not finish; `root` holds the runs."""
    keys = [axis.column, *([group] if group else [])]
    found = findings.groups(rows, keys)
    best = findings.best(found)
    # Narrow enough for 80 columns, the width of a log.
    table = Table(
        title=f"Word error rate and memory by {axis.noun}",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    comparisons = compared(rows, found, best, root)
    against = ["above the best [95 %]"] if comparisons else []
    for name in [*(findings.noun(key) for key in keys), *findings.SUMMARY_HEADER]:
        table.add_column(name, justify="right")
    for name in against:
        table.add_column(name, justify="right", no_wrap=True)
    for index, one in enumerate(found):
        cells = findings.summary_cells(one)
        if comparisons:
            cells.append(points(comparisons[index].best))
        table.add_row(*cells, style="bold" if one is best else "")
    lines: list[Table | Text] = [table, Text(findings.status_sentence(rows))]
    if best is not None and best.wer is not None:
        lines.append(Text(f"best on dev: {findings.words(best)}; test WER {spread_words(best.wer, 100, 2)} %, "
                          f"peak memory {bytes_words(best.mean('peak_memory_bytes'))}"))  # fmt: skip
    lines += [Text(f"{row['name']} {row['status']}: {row['reason']}") for row in rows if is_lost(row)]
    return Together(*lines)
