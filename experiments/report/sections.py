"""A self-contained page of figures and tables, for studies whose rows are not training runs.

It shares the style sheet and the embedded Vega of the run pages (`page.py`): opens from disk, asks the network for
nothing, reads on a phone and in print. Numbers reach it as text; what a figure shows is Vega-Lite from Altair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.report.assets import asset, script_json, vega
from experiments.run.result import write_atomically


@dataclass(frozen=True)
class Figure:
    """One chart (Altair) with its heading and what a reader must know to read it."""

    key: str
    title: str
    caption: str
    chart: Any


@dataclass(frozen=True)
class TextTable:
    """A table of ready text; `best` is the row to mark, `words` are the columns that read left to right."""

    title: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None = None
    words: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """Figures side by side (`columns` of them), then tables, under one heading."""

    title: str | None
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[TextTable] = ()
    columns: int = 2


@dataclass(frozen=True)
class Card:
    """One key figure above everything: value and where it comes from."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Document:
    """A whole page. `facts` go under "Environment", `command` under "How to make this again"."""

    title: str
    question: str
    status: str
    sections: Sequence[Section]
    cards: Sequence[Card] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    command: str = ""


def write_document(path: Path, document: Document) -> None:
    """Make the page and write it in one move."""
    write_atomically(path, render(document))


def render(document: Document) -> str:
    """The page as HTML text. Every figure's `key` must be its own."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(asset("sections.html.j2"))
    charts = {figure.key: figure.chart.to_dict() for section in document.sections for figure in section.figures}
    return template.render(
        document=document,
        made=datetime.now(UTC).strftime("%-d %B %Y, %H:%M UTC"),
        specs=[(key, Markup(script_json(spec))) for key, spec in charts.items()],
        css=Markup(asset("page.css")),
        vega=Markup(vega()),
    )
