"""Effect 3: samples and steps to the same dev loss by algorithmic batch size, at a fixed per-device batch.

Every batch size is trained at every learning rate of a log grid; the rate that needs the fewest samples stands for it,
and all are recorded. The target is a loss that every size reached, or --target-loss. Beside the curve stands the
gradient noise scale, measured at each size's best checkpoint. Runs share the machine, resume and are kept, as in the
depth study. It writes, under --output: batch_size.json, table.csv (one row a run), report.html and runs/NAME/.
"""

import argparse
import json
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.batch_size.sample_efficiency import Trained, Tuned, critical_batch, reachable_target, row, tune
from experiments.depth.command import fit_arguments
from experiments.many_runs.slots import runs_at_a_time
from experiments.option_lists import counts
from experiments.report.table import look_up
from experiments.run import provenance
from experiments.run.identity import identity
from experiments.run.result import read_result

EXIT_INTERRUPTED = 130
CHECKPOINT = Path("checkpoints") / "best.ckpt"


@dataclass(frozen=True)
class Point:
    """One run of the grid."""

    global_batch_size: int
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"batch-{self.global_batch_size}_rate-{self.learning_rate:g}_seed-{self.seed}"

    def options(self, per_device: int) -> list[str]:
        return [
            f"--data.global_batch_size={self.global_batch_size}",
            f"--data.per_device_batch_size={per_device}",
            f"--model.recipe.learning_rate={self.learning_rate:g}",
            f"--seed_everything={self.seed}",
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m experiments batch-size`."""
    parser.add_argument("--config", action="append", required=True, help="the card; several compose, the later wins")
    parser.add_argument(
        "--batch-sizes", type=counts, default=[8, 16, 32, 64, 128, 256], help="algorithmic (default: 8,16,...,256)"
    )
    parser.add_argument("--per-device-batch", type=int, default=8, help="utterances of a micro-batch (default: 8)")
    parser.add_argument(
        "--learning-rates",
        type=rates,
        default=[1e-3, 3e-3, 9e-3, 2.7e-2],
        help="a log grid (default: 1e-3,3e-3,9e-3,2.7e-2)",
    )
    parser.add_argument("--seeds", type=counts, default=[0], help="default 0")
    parser.add_argument("--target-loss", type=float, default=None, help="dev loss (default: one that all sizes reach)")
    parser.add_argument("--noise-groups", type=int, default=16, help="gradients of the noise scale; 0: none")
    parser.add_argument("--noise-group-size", type=int, default=8, help="micro-batches of one (default: 8)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the card for all")
    parser.add_argument(
        "--jobs", type=runs_at_a_time, default=None, help="runs at a time; auto: one a GPU, or one a core"
    )
    parser.add_argument("--reuse-commit", action="store_true", help="keep results of another commit")
    parser.add_argument("--output", type=Path, required=True, help="the study's folder")


def run(options: argparse.Namespace) -> int:
    """Run the study. Raises ValueError for what cannot be run; 1 where no run finished."""
    from experiments.batch_size.report import print_summary, write_results
    from experiments.many_runs.progress_board import ProgressBoard
    from experiments.many_runs.resolving import resolve
    from experiments.many_runs.runner import Run, execute
    from experiments.many_runs.slots import machine_slots
    from experiments.run.folder import locked

    root: Path = options.output
    points = grid(options)
    arguments = {p.name: [*fit_arguments(options), *p.options(options.per_device_batch)] for p in points}
    configs = resolve(arguments)
    runs: dict[Point, Run] = {}
    for point in points:
        config = configs[point.name]
        config_hash = identity(config)
        folder = root / "runs" / f"{point.name}-{config_hash[:8]}"
        fit = [sys.executable, "-m", "experiments", "fit", *arguments[point.name], "--output", str(folder)]
        command = (*fit, "--reuse_commit=false")
        # All see as many samples; a small batch takes more optimiser steps for them.
        cost = 1 + options.per_device_batch / point.global_batch_size
        runs[point] = Run(point.name, folder, command, config, config_hash, cost=cost)
    accelerator = str(look_up(next(iter(configs.values())), "trainer.accelerator"))
    slots = machine_slots(options.jobs, accelerator)
    try:
        with locked(root):
            execute(
                list(runs.values()),
                slots,
                ProgressBoard(),
                commit=provenance.commit(),
                reuse_commit=options.reuse_commit,
            )
            trained = [read_run(point, one.folder, root) for point, one in runs.items()]
            if all(one.status != "finished" for one in trained):
                print(f"error: no run finished; {trained[0].folder}: {trained[0].reason}", file=sys.stderr)
                return 1
            target = options.target_loss or reachable_target(trained)
            tuned = tune(trained, target)
            noise = noise_scales(tuned, {p: (runs[p].folder, runs[p].config) for p in points}, options, accelerator)
            record = study_record(options, trained, tuned, target, noise)
            write_results(root, record)
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from here: {command_of(options)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    print_summary(record)
    print(f"wrote {root / 'report.html'}")
    return 0


def grid(options: argparse.Namespace) -> list[Point]:
    """Batch sizes x learning rates x seeds. Raises ValueError for sizes that micro-batches do not fill."""
    per_device = options.per_device_batch
    if per_device < 1 or min(options.batch_sizes) < 1:
        raise ValueError("--batch-sizes and --per-device-batch are at least 1.")
    if options.noise_groups < 0 or (options.noise_groups and options.noise_group_size < 2):
        raise ValueError(
            f"--noise-groups is {options.noise_groups} and --noise-group-size {options.noise_group_size}; a group "
            "needs at least 2 micro-batches, and --noise-groups 0 measures no noise scale."
        )
    for size in options.batch_sizes:
        if size % per_device:
            raise ValueError(
                f"--batch-sizes has {size}, which is no multiple of the per-device batch of {per_device}; give "
                f"multiples of {per_device}."
            )
    points = [Point(b, r, s) for b in options.batch_sizes for r in options.learning_rates for s in options.seeds]
    if len(set(points)) < len(points):
        raise ValueError("The grid names a point twice; give every batch size, learning rate and seed once.")
    return points


def read_run(point: Point, folder: Path, root: Path) -> Trained:
    """What a run left behind. Raises ValueError for half a result."""
    record = read_result(folder) or {"status": "stopped", "reason": "no result"}
    path = folder / "curves.json"
    curves = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Trained(
        point.global_batch_size,
        point.learning_rate,
        point.seed,
        record["status"],
        record.get("reason"),
        # The log counts from 0: what stands at step 3 was measured after four.
        tuple((step + 1, loss) for step, loss in curves.get("val/loss", [])),
        record.get("val_wer"),
        folder.relative_to(root).as_posix(),
    )


def noise_scales(
    tuned: list[Tuned], runs: dict[Point, tuple[Path, dict[str, Any]]], options: argparse.Namespace, accelerator: str
) -> list[dict[str, Any]]:
    """The gradient noise scale at the best checkpoint of each batch size, first seed."""
    if not options.noise_groups:
        return []
    import torch

    from experiments.batch_size.noise_scale import measure

    device = "cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"
    found = []
    for one in tuned:
        point = Point(one.global_batch_size, one.learning_rate, options.seeds[0])
        folder, config = runs[point]
        print(f"noise scale at {point.name}", file=sys.stderr)
        scale = measure(folder / CHECKPOINT, config["data"], options.noise_groups, options.noise_group_size, device)
        found.append(
            {"global_batch_size": one.global_batch_size, "learning_rate": one.learning_rate, "seed": point.seed}
            | asdict(scale)
        )
    return found


def study_record(
    options: argparse.Namespace,
    trained: list[Trained],
    tuned: list[Tuned],
    target: float,
    noise: list[dict[str, Any]],
) -> dict[str, Any]:
    """All that batch_size.json holds."""
    fitted = critical_batch(tuned)
    return {
        "experiment": "batch-size",
        "command": command_of(options),
        "commit": provenance.commit(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": provenance.versions(),
        "per_device_batch_size": options.per_device_batch,
        "learning_rates": options.learning_rates,
        "target_loss": target,
        "target_given": options.target_loss is not None,
        "curve": [asdict(one) for one in tuned],
        "critical_batch": None if fitted is None else {"samples_min": fitted[0], "batch": _finite(fitted[1])},
        "noise_scale": noise,
        "rows": [row(one, target, tuned) for one in trained],
        "losses": [{"folder": one.folder, "val_loss": one.val_loss} for one in trained],
    }


def command_of(options: argparse.Namespace) -> str:
    """The command that makes the study again."""
    said = ["python", "-m", "experiments", "batch-size", *(f"--config={file}" for file in options.config)]
    said += [f"--batch-sizes={','.join(map(str, options.batch_sizes))}"]
    said += [f"--per-device-batch={options.per_device_batch}"]
    said += [f"--learning-rates={','.join(f'{rate:g}' for rate in options.learning_rates)}"]
    said += [f"--seeds={','.join(map(str, options.seeds))}"]
    said += [] if options.target_loss is None else [f"--target-loss={options.target_loss:g}"]
    said += [f"--noise-groups={options.noise_groups}", f"--noise-group-size={options.noise_group_size}"]
    said += [f"--set={given}" for given in options.set]
    return shlex.join([*said, f"--output={options.output}"])


def rates(text: str) -> list[float]:
    """`1e-3,2e-3` as ascending learning rates above 0."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers; write it as 1e-3,2e-3") from None
    if not all(0 < value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} has a rate that is not above 0")
    return sorted(values)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
