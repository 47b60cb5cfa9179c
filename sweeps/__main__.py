"""`python -m sweeps check|run|slurm|table|report|dashboard|agents|panels`: W&B sweep files, with or without W&B.

check FILE...            schema and every point, parsed and nothing trained
run FILE --output DIR    all points over the local GPUs or CPU slots; asked again, it goes on
slurm FILE --output DIR  the same as a SLURM job array, one run a job
table DIR                every result.json beneath DIR, and W&B's runs, as one tidy table (CSV or Parquet)
report DIR               one self-contained page
dashboard DIR            the page, served live while runs go on
agents SWEEP_ID          real W&B agents, one a GPU (or a core), each with its own port
panels FILE              a saved view of the sweep on W&B's own pages
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from data.entry_point import run_command
from data.one_sentence_parser import OneSentenceParser
from data.option_values import count, port
from experiments.many_runs.slots import machine_slots, runs_at_a_time

EXIT_FINISHED, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done, 1 no run finished, 2 wrong input, 130 interrupted)."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.run(options))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED


def check(options: argparse.Namespace) -> int:
    """Every file is checked; the first fault of each is told."""
    from sweeps.planning import plan, plan_points
    from sweeps.sweep_file import read_sweep

    worst = EXIT_FINISHED
    for path in options.files:
        try:
            sweep = read_sweep(path)
            if sweep.method == "bayes":
                keys = [one.key for one in sweep.parameters]
                parsed = len(plan_points(sweep, sweep.extremes(), keys, options.set))
                words = f"{parsed} points with every value and every bound parse"
                print(f"{path}: bayes over {len(keys)} parameters, {words}; what it takes follows from its results")
                continue
            planned, columns = plan(sweep, options.set)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            worst = EXIT_USAGE
            continue
        kind = "points" if sweep.method == "grid" else "draws"
        print(f"{path}: {len(planned)} {kind}, all parse; varied: {', '.join(columns) or 'seeds alone'}")
    return worst


def run(options: argparse.Namespace) -> int:
    """Execute a sweep file without a server."""
    from experiments.many_runs.progress_board import ProgressBoard
    from experiments.report.terminal import summary_table
    from sweeps.local_run import LocalRun
    from sweeps.study import study_of
    from sweeps.sweep_file import read_sweep

    sweep, root, board = read_sweep(options.file), options.output, ProgressBoard()
    if root.exists() and not root.is_dir():
        raise ValueError(f"--output {root} is a file; name a folder.")
    local = LocalRun(sweep, root, options.set, options.seed, options.jobs, options.gpus, options.reuse_commit, board)
    rows = local.bayes() if sweep.method == "bayes" else local.grid_or_random(options.limit)
    study = study_of(root, rows)
    board.console.print(summary_table(rows, study.axis, root, study.group))
    board.console.print(f"{root / 'report.html'}", highlight=False, soft_wrap=True)
    return EXIT_FINISHED if any(row["status"] == "finished" for row in rows) else EXIT_FAILED


def slurm(options: argparse.Namespace) -> int:
    """Write a job array, and submit it where asked."""
    from sweeps.local_run import command_of
    from sweeps.planning import plan
    from sweeps.slurm import submit, write_array
    from sweeps.study import remember
    from sweeps.sweep_file import read_sweep

    sweep = read_sweep(options.file)
    planned, columns = plan(sweep, options.set, options.seed, options.limit)
    script = write_array(
        options.output,
        sweep.name,
        planned,
        nodes=options.nodes,
        gpus=options.gpus,
        time=options.time,
        more=options.sbatch,
    )
    command = command_of("slurm", sweep, options.output, options.set, options.seed)
    remember(options.output, sweep, [one.point for one in planned], columns, command)
    print(f"{script}: {len(planned)} jobs")
    if options.submit:
        print(submit(script))
    return EXIT_FINISHED


def table(options: argparse.Namespace) -> int:
    """Gather results into one file, or print them as CSV."""
    from experiments.report.table import to_csv, write_csv
    from sweeps.parquet import write_parquet
    from sweeps.study import gather

    if options.folder is None and options.wandb is None:
        raise ValueError("table needs a folder with runs, or --wandb ENTITY/PROJECT, or both.")
    if options.output is not None and options.output.suffix not in (".csv", ".parquet"):
        raise ValueError(f"{options.output} is neither .csv nor .parquet; the ending says what to write.")
    rows, columns = gather(options.folder, wandb=options.wandb)
    if options.output is None:
        sys.stdout.write(to_csv(rows, list(columns)))
    elif options.output.suffix == ".parquet":
        write_parquet(options.output, to_csv(rows, list(columns)))
    else:
        write_csv(options.output, rows, list(columns))
    return EXIT_FINISHED


def report(options: argparse.Namespace) -> int:
    """Make the page of whatever has ended beneath a folder."""
    from sweeps.study import write_report

    path = options.output or options.folder / "report.html"
    rows = write_report(options.folder, path)
    print(f"{path}: {len(rows)} runs")
    return EXIT_FINISHED


def agents(options: argparse.Namespace) -> int:
    """Run W&B agents side by side."""
    from sweeps.agents import run_agents

    return run_agents(options.sweep_id, machine_slots(options.jobs, gpus=options.gpus), options.count)


def panels(options: argparse.Namespace) -> int:
    """Store the sweep's view in a W&B project, or write what would be stored."""
    from sweeps.panels import save, view, write_specification
    from sweeps.sweep_file import read_sweep

    sweep = read_sweep(options.file)
    if options.project is None and options.save is None:
        raise ValueError("panels needs --project, where the view is stored, or --save FILE.json, which writes it here.")
    made = view(sweep, options.entity or "", options.project or "", options.sweep)
    if options.save is not None:
        write_specification(options.save, made)
        print(f"{options.save}: {sum(len(section.panels) for section in made.sections)} panels")
    else:
        print(save(made))
    return EXIT_FINISHED


def dashboard(options: argparse.Namespace) -> int:
    """Serve the page of a folder while its runs go on."""
    from sweeps.dashboard import serve

    serve(options.folder, options.host, options.port)
    return EXIT_FINISHED


EXAMPLES = {
    "check": "sweeps/depth_constant_width.yaml",
    "run": "sweeps/depth_constant_width.yaml --output runs/depth",
    "slurm": "sweeps/depth_constant_width.yaml --output runs/depth --nodes 4 --gpus 8 --submit",
    "table": "runs/depth --output depth.parquet",
    "report": "runs/depth",
    "dashboard": "runs/depth --port 8321",
    "agents": "ENTITY/PROJECT/ID --count 3",
    "panels": "sweeps/depth_constant_width.yaml --project depth --entity us",
}


def _parser() -> argparse.ArgumentParser:
    parser = OneSentenceParser(
        prog="python -m sweeps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("check", help="schema and every point, nothing trained")
    one.add_argument("files", type=Path, nargs="+", metavar="FILE")
    one.set_defaults(run=check)
    one = commands.add_parser("run", help="execute a sweep file without a server")
    one.add_argument("file", type=Path, metavar="FILE")
    one.add_argument("--output", type=Path, required=True, help="the sweep's folder")
    one.add_argument(
        "--jobs", type=runs_at_a_time, default=None, help="runs at a time; auto (default): one a GPU, or one a core"
    )
    one.add_argument(
        "--gpus", type=count, default=1, help="GPUs a run has to itself (default 1); it trains on all of them"
    )
    one.add_argument("--seed", type=int, default=0, help="of a random sweep's draws")
    one.add_argument("--limit", type=count, default=None, help="the first so many points only")
    one.add_argument("--reuse-commit", action="store_true", help="keep results of another commit")
    one.set_defaults(run=run)
    one = commands.add_parser("slurm", help="a sweep file as a SLURM job array")
    one.add_argument("file", type=Path, metavar="FILE")
    one.add_argument("--output", type=Path, required=True, help="the sweep's folder, on a disk that all nodes share")
    one.add_argument("--nodes", type=count, default=1, help="nodes a run")
    one.add_argument("--gpus", type=count, default=1, help="GPUs a node")
    one.add_argument("--time", default="24:00:00", help="of a job; a run that needs longer is queued again")
    one.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="as partition=gpu; may be repeated"
    )
    one.add_argument("--submit", action="store_true", help="hand it to sbatch")
    one.add_argument("--seed", type=int, default=0, help="of a random sweep's draws")
    one.add_argument("--limit", type=count, default=None, help="the first so many points only")
    one.set_defaults(run=slurm)
    for command in commands.choices.values():
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="a config key for all runs"
        )
    one = commands.add_parser("table", help="results beneath a folder as one table")
    one.add_argument("folder", type=Path, metavar="DIR", nargs="?", default=None)
    one.add_argument("--output", type=Path, default=None, help="a .csv or .parquet file; else CSV on the terminal")
    one.add_argument(
        "--wandb", metavar="ENTITY/PROJECT[/SWEEP]", default=None, help="W&B's runs too; one that is in DIR counts once"
    )
    one.set_defaults(run=table)
    one = commands.add_parser("report", help="results beneath a folder as one page")
    one.add_argument("folder", type=Path, metavar="DIR")
    one.add_argument("--output", type=Path, default=None, help="the page; DIR/report.html")
    one.set_defaults(run=report)
    one = commands.add_parser("dashboard", help="the page, served live while runs go on")
    one.add_argument("folder", type=Path, metavar="DIR")
    one.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: this machine alone")
    one.add_argument("--port", type=port, default=8321, help="default 8321")
    one.set_defaults(run=dashboard)
    one = commands.add_parser("agents", help="real W&B agents, each with its own share of this machine")
    one.add_argument("sweep_id", metavar="SWEEP_ID", help="ENTITY/PROJECT/ID, as `wandb sweep FILE` prints it")
    one.add_argument(
        "--jobs", type=runs_at_a_time, default=None, help="agents; auto (default): one a GPU, or one a core"
    )
    one.add_argument("--gpus", type=count, default=1, help="GPUs an agent's runs have to themselves (default 1)")
    one.add_argument("--count", type=count, default=None, help="points an agent runs; default all that W&B hands out")
    one.set_defaults(run=agents)
    one = commands.add_parser("panels", help="the sweep's figures and run table as a saved view on W&B's own pages")
    one.add_argument("file", type=Path, metavar="FILE")
    one.add_argument("--project", help="W&B's project, as its runs name it (--wandb.project); --save needs none")
    one.add_argument("--entity", default=None, help="W&B's user or team; default: the account's own")
    one.add_argument("--sweep", metavar="ID", default=None, help="show the runs of this sweep alone")
    one.add_argument("--save", type=Path, metavar="FILE.json", default=None, help="write it there; needs no account")
    one.set_defaults(run=panels)
    for name, command in commands.choices.items():
        command.allow_abbrev = False
        command.epilog = f"example: python -m sweeps {name} {EXAMPLES[name]}"
    return parser


if __name__ == "__main__":
    run_command(main)
