"""Word error rate and memory by depth: one card, trained at several depths and seeds, in a table and on a page.

Every point of the grid (depth x skip span x seed) is parsed before the first run starts; the runs then share the
machine (`runner.py`). Asked for again, the study keeps what has ended and goes on with what was cut short. It writes,
under --output: depth.json, table.csv (one row a run), report.html, figures/ and runs/NAME/ (a run's own folder).

Constant width is the default: the card's hidden size at every depth. For constant parameters give a width to each
depth, as in --num-layers 8,24,40 --hidden-size 1632,928,704. --paper takes all three from a table of the paper.

Exit codes: 0 when a run finished, also beside others that failed (the table says which); 1 when none did; 2 for a
mistake, before anything starts.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.many_runs.progress_board import ProgressBoard
from experiments.many_runs.runner import Run, execute
from experiments.many_runs.slots import machine_slots, runs_at_a_time
from experiments.option_lists import counts, integers
from experiments.report import findings
from experiments.report.comparisons import compared
from experiments.report.figures import Axis
from experiments.report.paper import TABLES
from experiments.report.table import Row, look_up, read_row, write_csv
from experiments.run import provenance
from experiments.run.folder import locked
from experiments.run.identity import identity
from experiments.run.result import write_atomically

EXIT_INTERRUPTED = 130
QUESTION = (
    "Does a deeper stack of forward-only RNN layers make fewer errors, and what does it cost in memory and speed?"
)


@dataclass(frozen=True)
class Point:
    """One point of the grid. None: as the card says."""

    num_layers: int
    hidden_size: int | None
    skip_span: int | None
    seed: int

    @property
    def name(self) -> str:
        parts = [f"layers-{self.num_layers}"]
        parts += [f"units-{self.hidden_size}"] if self.hidden_size is not None else []
        parts += [f"span-{self.skip_span}"] if self.skip_span is not None else []
        return "_".join([*parts, f"seed-{self.seed}"])

    def options(self) -> list[str]:
        """What the point adds to the command line; a span of 0 is no skip, which the model calls null."""
        said = [f"--model.num_layers={self.num_layers}", f"--seed_everything={self.seed}"]
        said += [f"--model.hidden_size={self.hidden_size}"] if self.hidden_size is not None else []
        return said + ([f"--model.skip_span={self.skip_span or 'null'}"] if self.skip_span is not None else [])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m experiments depth`."""
    parser.add_argument("--config", action="append", required=True, help="the card; several compose, the later wins")
    parser.add_argument("--num-layers", type=integers, help="depths, as 1,4,8 (the default)")
    parser.add_argument("--hidden-size", type=integers, help="one width, or one for each depth; else the card's")
    parser.add_argument("--skip-span", type=counts, help="spans, as 1,2,4; 0 is no skip; else the card's")
    parser.add_argument("--seeds", type=counts, default=[0, 1], help="default 0,1; three or more give intervals")
    parser.add_argument(
        "--paper", choices=[table.key for table in TABLES], help="the grid of one of the paper's tables"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the card for all runs"
    )
    parser.add_argument(
        "--jobs", type=runs_at_a_time, default=None, help="runs at a time; auto (default): one a GPU, or one a core"
    )
    parser.add_argument("--reuse-commit", action="store_true", help="keep results of another commit")
    parser.add_argument("--output", type=Path, required=True, help="the study's folder")


def run(options: argparse.Namespace) -> int:
    """Run the study; 0 also where runs failed or diverged, since the page says so. 1 where no run finished."""
    from experiments.many_runs.resolving import resolve
    from experiments.report.terminal import summary_table

    root: Path = options.output
    try:
        if root.exists() and not root.is_dir():
            raise ValueError(f"--output {root} is a file; name a folder.")
        points = grid(options)
        arguments = {point.name: [*fit_arguments(options), *point.options()] for point in points}
        configs = resolve(arguments)
        runs = [study_run(root, point, arguments[point.name], configs[point.name]) for point in points]
        slots = machine_slots(options.jobs, str(look_up(runs[0].config, "trainer.accelerator")), len(runs))
        board = ProgressBoard()
        with locked(root):
            try:
                execute(runs, slots, board, commit=provenance.commit(), reuse_commit=options.reuse_commit)
            finally:  # an interrupted study has the page of what has ended
                rows = [row for one in runs if (row := read_row(one.folder, root)) is not None]
                if rows:
                    write_study(root, options, runs, rows)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from here: {command(options)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    board.console.print(summary_table(rows, axis_of(options), root))
    board.console.print(f"{root / 'report.html'}", highlight=False, soft_wrap=True)
    return 0 if any(row["status"] == "finished" for row in rows) else 1


def grid(options: argparse.Namespace) -> list[Point]:
    """Depths (with their widths) x skip spans x seeds. Raises ValueError where the lists do not fit together."""
    depths, widths, spans = options.num_layers, options.hidden_size, options.skip_span
    if options.paper:
        if depths or widths or spans:
            raise ValueError("--paper brings its own depths, widths and spans; leave --num-layers, --hidden-size and "
                             "--skip-span out.")  # fmt: skip
        depths, widths, spans = paper_grid(options.paper)
    depths = depths or [1, 4, 8]
    if widths and len(widths) not in (1, len(depths)):
        raise ValueError(f"--hidden-size has {len(widths)} widths for {len(depths)} depths; give one, or one for each.")
    widths = (widths or [None]) * (len(depths) if len(widths or [None]) == 1 else 1)
    points = [
        Point(depth, width, span, seed)
        for depth, width in zip(depths, widths, strict=True)
        for span in spans or [None]
        for seed in options.seeds
    ]
    if len(set(points)) < len(points):
        raise ValueError("The grid names a point twice; give every depth, span and seed once.")
    return points


def paper_grid(key: str) -> tuple[list[int], list[int], list[int] | None]:
    """Depths, widths and spans of one of the paper's tables; its spans are at 48 layers of 1,152 units."""
    rows = next(table for table in TABLES if table.key == key).rows
    if key == "skip-span":
        return [48], [1152], [int(row["skip_span"]) for row in rows]
    return [int(row["num_layers"]) for row in rows], [int(row["hidden_size"]) for row in rows], None


def fit_arguments(options: argparse.Namespace) -> list[str]:
    """What all runs share of their command line. Raises ValueError for a `--set` without `=`."""
    for given in options.set:
        if "=" not in given:
            raise ValueError(f"--set {given} has no value; write --set KEY=VALUE, as in --set trainer.max_epochs=5.")
    return [*(f"--config={file}" for file in options.config), *(f"--{given}" for given in options.set)]


def study_run(root: Path, point: Point, arguments: list[str], config: dict[str, Any]) -> Run:
    """The point as a run; its folder carries the config's hash, so a changed card trains beside the old runs."""
    config_hash = identity(config)
    folder = root / "runs" / f"{point.name}-{config_hash[:8]}"
    fit = (sys.executable, "-m", "experiments", "fit", *arguments, "--output", str(folder), "--reuse_commit=false")
    # The recurrent stack's time grows with depth; the front-end and the loss weigh about three layers.
    return Run(point.name, folder, fit, config, config_hash, cost=point.num_layers + 3.0)


def axis_of(options: argparse.Namespace) -> Axis:
    """By what the study's figures go: depth, or skip span where only that varies."""
    if options.paper == "skip-span" or (options.skip_span and len(options.num_layers or [1, 4, 8]) == 1):
        return Axis("skip_span", "recurrent layers a skip spans (0: no skips)", "skip span")
    return Axis("num_layers", "recurrent layers", "depth")


def write_study(root: Path, options: argparse.Namespace, runs: list[Run], rows: list[Row]) -> None:
    """depth.json, table.csv, report.html and figures/ of what has ended so far."""
    from experiments.report.page import Study, write_figures, write_page

    axis = axis_of(options)
    group = "skip_span" if axis.column != "skip_span" and len({row["skip_span"] for row in rows}) > 1 else None
    title = f"Word error rate and memory by {axis.noun}"
    found = findings.groups(rows, [axis.column, *([group] if group else [])])
    study = Study(title, QUESTION, command(options), rows, root, axis, group, TABLES)
    record = {
        "experiment": "depth",
        "command": command(options),
        "commit": provenance.commit(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": provenance.versions(),
        "runs": [{"name": one.name, "folder": one.folder.relative_to(root).as_posix()} for one in runs],
        "rows": rows,
        "comparisons": [one.record() for one in compared(rows, found, findings.best(found), root)],
    }
    write_atomically(root / "depth.json", json.dumps(record, indent=1) + "\n")
    write_csv(root / "table.csv", rows)
    write_page(root / "report.html", study)
    write_figures(root / "figures", study)


def command(options: argparse.Namespace) -> str:
    """The command that makes the study again."""
    said = ["python", "-m", "experiments", "depth", *(f"--config={file}" for file in options.config)]
    for name in ("num_layers", "hidden_size", "skip_span", "seeds"):
        values = getattr(options, name)
        said += [f"--{name.replace('_', '-')}={','.join(map(str, values))}"] if values else []
    said += [f"--paper={options.paper}"] if options.paper else []
    said += [f"--set={given}" for given in options.set]
    return shlex.join([*said, f"--output={options.output}"])
