"""`sweeps run`: a sweep file executed without a server, over the GPUs or the cores of this machine.

Under the output folder: sweep.json, table.csv, report.html and runs/NAME-HASH/, a run's own folder. The runner is that
of the depth study: in slots, resumable, a failed or diverged run recorded and passed by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.many_runs.progress_board import ProgressBoard
from experiments.many_runs.runner import execute
from experiments.many_runs.slots import machine_slots
from experiments.report.table import Row, look_up, read_row
from experiments.run import provenance
from experiments.run.folder import locked
from sweeps.bayes import metric_column, search
from sweeps.columns import column_names
from sweeps.planning import Planned, plan, plan_points
from sweeps.study import recall, remember, write_report
from sweeps.sweep_file import Point, Sweep


@dataclass(frozen=True)
class LocalRun:
    """One execution of a sweep file."""

    sweep: Sweep
    root: Path
    settings: Sequence[str]
    seed: int
    jobs: int | None
    gpus: int
    reuse_commit: bool
    board: ProgressBoard

    def grid_or_random(self, limit: int | None) -> list[Row]:
        """All points are parsed, then trained; returns the rows."""
        planned, columns = plan(self.sweep, self.settings, self.seed, limit)
        with locked(self.root):
            self._remember([one.point for one in planned], columns)
            self._execute(planned)
            return write_report(self.root, self.root / "report.html")

    def bayes(self) -> list[Row]:
        """Points are proposed from the results so far; returns the rows."""
        column = metric_column(self.sweep)
        keys = [one.key for one in self.sweep.parameters if one.distribution != "constant"]
        columns = column_names(keys)

        def train(points: list[Point]) -> list[float | None]:
            planned = plan_points(self.sweep, points, keys, self.settings)
            self._remember(points, columns)
            self._execute(planned)
            rows = [read_row(one.run(self.root).folder, self.root) for one in planned]
            # A run that was stopped early has shown a value too: that it is bad is what the search should know.
            return [row[column] if row and row["status"] in ("finished", "stopped") else None for row in rows]

        with locked(self.root):
            known = recall(self.root).get("points", [])
            search(self.sweep, known, train, at_once=len(machine_slots(self.jobs, gpus=self.gpus)), seed=self.seed)
            return write_report(self.root, self.root / "report.html")

    def _execute(self, planned: Sequence[Planned]) -> None:
        runs = [one.run(self.root) for one in planned]
        accelerator = str(look_up(runs[0].config, "trainer.accelerator"))
        slots = machine_slots(self.jobs, accelerator, len(runs), self.gpus)
        execute(
            runs,
            slots,
            self.board,
            commit=provenance.commit(),
            reuse_commit=self.reuse_commit,
            judge=self.sweep.early_terminate,
        )

    def _remember(self, points: Sequence[Point], columns: dict[str, str]) -> None:
        said = command_of("run", self.sweep, self.root, self.settings, self.seed)
        remember(self.root, self.sweep, points, columns, said)


def command_of(command: str, sweep: Sweep, root: Path, settings: Sequence[str], seed: int) -> list[str]:
    """The command that makes the sweep again."""
    said = ["python", "-m", "sweeps", command, str(sweep.path), f"--output={root}"]
    return said + [f"--set={one}" for one in settings] + ([f"--seed={seed}"] if seed else [])
