"""What a terminal shows while runs execute: one line a run, and the time left; plain lines where there is no terminal.

Everything is read from the runs' own `metrics.jsonl` and `result.json`; the runs know nothing of the board.
Time left: the runs' costs weigh what is done of each, and the work done since the start gives the rate.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

STYLES = {
    "finished": "green",
    "diverged": "red",
    "failed": "red",
    "stopped": "yellow",
    "running": "bold",
    "waiting": "dim",
}
MARKS = {"finished": "✓", "diverged": "✗", "failed": "✗", "stopped": "■", "running": "▶", "waiting": "·"}
ROWS_SHOWN = 30


@dataclass
class RunLine:
    """What is known of one run so far."""

    name: str
    epochs: int | None = None
    cost: float = 1.0
    state: str = "waiting"
    epoch: int | None = None
    fraction: float = 0.0
    start_fraction: float | None = None
    loss: float | None = None
    dev_wer: float | None = None
    test_wer: float | None = None
    audio_seconds_per_second: float | None = None
    note: str = ""
    # What the user should know before the run starts.
    told: str = ""
    began: float | None = None
    seconds: float = 0.0
    news: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.state, self.began = "running", time.monotonic()
        self.start_fraction = self.fraction if self.start_fraction is None else self.start_fraction
        # What was read before the start is known already: only what comes now is news.
        self.news = [self.told] if self.told else []
        self.news.append("goes on" if self.fraction and not self.told else "starts")
        self.told = ""

    def restart(self, note: str) -> None:
        self.state, self.note = "waiting", f"{note}, starts again"
        self.news.append(self.note)

    def read(self, lines: Iterable[bytes]) -> None:
        """Take in lines of `metrics.jsonl`."""
        for line in lines:
            row = json.loads(line)
            self.loss = row.get("train/loss", self.loss)
            self.audio_seconds_per_second = row.get("perf/audio_seconds_per_second", self.audio_seconds_per_second)
            self.epoch = row.get("epoch", self.epoch)
            if self.epoch is not None and self.epochs:
                self.epoch = min(self.epoch, self.epochs - 1)  # the test after the last epoch counts one on
            if row.get("val/wer") is not None:
                self.dev_wer = row["val/wer"]
                self.news.append(self.figures())
            if self.epochs and self.epoch is not None:
                self.fraction = min(1.0, (self.epoch + ("val/wer" in row)) / self.epochs)

    def end(self, record: dict[str, Any], kept: bool = False) -> None:
        self.state = record["status"]
        self.note = record.get("reason") or ("kept from before" if kept else "")
        self.dev_wer = record.get("val_wer") or self.dev_wer
        self.test_wer = record.get("wer")
        self.seconds = time.monotonic() - self.began if self.began is not None else 0.0
        self.fraction = 1.0
        if kept:
            self.start_fraction = 1.0
        wer = f", test WER {percent(self.test_wer)}" if self.test_wer is not None else ""
        self.news.append(f"{self.state}{wer}{f' ({self.note})' if self.note else ''}")

    def figures(self) -> str:
        of = f"/{self.epochs}" if self.epochs else ""
        parts = [f"epoch {self.epoch + 1}{of}" if self.epoch is not None else ""]
        parts += [f"loss {self.loss:.3g}" if self.loss is not None else ""]
        parts += [f"dev WER {percent(self.dev_wer)}" if self.dev_wer is not None else ""]
        parts += [
            f"{self.audio_seconds_per_second:,.0f} audio s/s" if self.audio_seconds_per_second is not None else ""
        ]
        return ", ".join(part for part in parts if part)


class ProgressBoard:
    """Shows RunLines on a rich console; `refresh` is called by the runner's loop, there is no thread."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._lines: Sequence[RunLine] = ()
        self._live: Live | None = None
        self._began = 0.0

    @contextmanager
    def showing(self, lines: Sequence[RunLine]) -> Iterator[None]:
        self._lines, self._began = lines, time.monotonic()
        if not self.console.is_terminal:
            yield
            self.refresh()
            return
        with Live(self._picture(), console=self.console, auto_refresh=False) as self._live:
            yield
            self.refresh()

    def refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            return
        for line in self._lines:
            for said in line.news:
                self.console.print(f"{line.name}: {said}", markup=False, highlight=False, soft_wrap=True)
            line.news.clear()

    def seconds_left(self) -> float | None:
        """Estimated from the work done since the start; None before there is any."""
        total = sum(line.cost for line in self._lines)
        done = sum(line.cost * line.fraction for line in self._lines)
        before = sum(line.cost * (line.start_fraction or 0.0) for line in self._lines)
        if done - before <= 0:
            return None
        return (total - done) * (time.monotonic() - self._began) / (done - before)

    def _picture(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("run", no_wrap=True)
        for name in ("epoch", "loss", "dev WER", "test WER", "audio s/s", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True)
        rank = {"running": 0, "failed": 1, "diverged": 1, "waiting": 3}
        shown = sorted(self._lines, key=lambda line: rank.get(line.state, 2))[:ROWS_SHOWN]
        for line in (line for line in self._lines if any(line is one for one in shown)):
            seconds = time.monotonic() - line.began if line.state == "running" and line.began else line.seconds
            table.add_row(
                Text(f"{MARKS[line.state]} {line.name}", style=STYLES[line.state]),
                "" if line.epoch is None else f"{line.epoch + 1}" + (f"/{line.epochs}" if line.epochs else ""),
                "" if line.loss is None else f"{line.loss:.3g}",
                "" if line.dev_wer is None else percent(line.dev_wer),
                "" if line.test_wer is None else percent(line.test_wer),
                "" if line.audio_seconds_per_second is None else f"{line.audio_seconds_per_second:,.0f}",
                clock(seconds) if seconds else "",
                Text(line.note, style=STYLES[line.state]),
            )
        return Group(table, Text(self._summary(), style="bold"))

    def _summary(self) -> str:
        counts = {state: sum(line.state == state for line in self._lines) for state in STYLES}
        said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        left = self.seconds_left()
        ahead = f"about {clock(left)} left" if left else "time left not known yet"
        if not counts["running"] + counts["waiting"]:
            ahead = "all done"
        return f"{said}; {clock(time.monotonic() - self._began)} so far, {ahead}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
