"""`python -m experiments throughput`: how fast one recurrent layer runs, by mini-batch, beside its rivals.

Effect 1 of the study: ordinary RNN layers need a mini-batch of 64 and more to run efficiently, a persistent kernel is
efficient at 4. All rivals run one problem in turn in one process. A speed is reported only for a result that was
compared with the reference in that same process, on the same inputs: a rival outside the error budget gets its error
in the table and no speed.

FLOPs per time step: 2 H^2 B forward (U h), three times that for `both` (U^T delta and dU besides). The input
projection is not counted, although cuDNN and torch.nn.RNN cannot leave theirs out.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.option_values import count
from experiments.cli import EXIT_FAILED
from experiments.devices import device_of
from experiments.option_lists import integers, names

DTYPES = ("bfloat16", "float16", "float32")
BACKENDS = ("persistent", "cudnn", "gemm", "reference", "torch", "flashrnn")
PASSES = ("forward", "both")

# Error budget: at most twice the error of the reference in the same precision, plus one rounding of the output's scale.
# Rivals get the same budget; tanh and relu differ little in it.
ERROR_FACTOR = 2.0


@dataclass(frozen=True)
class Row:
    """One backend on one problem in one pass. Times in microseconds per time step; errors relative to float64."""

    backend: str
    hidden_size: int
    batch_size: int
    time_steps: int
    dtype: str
    activation: str
    us_per_step: float | None
    us_per_step_low: float | None
    us_per_step_high: float | None
    tflops: float | None
    share_of_peak: float | None
    error: float | None
    error_allowed: float | None
    reason: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--hidden-sizes", type=integers, default=[1152], help="comma-separated (default: 1152)")
    parser.add_argument(
        "--batch-sizes", type=integers, default=[1, 2, 3, 4, 6, 8, 12, 16, 32, 64], help="comma-separated mini-batches"
    )
    parser.add_argument("--time-steps", type=integers, default=[512], help="comma-separated (default: 512)")
    parser.add_argument("--dtypes", type=names(DTYPES), default=["bfloat16"], help=f"from {', '.join(DTYPES)}")
    parser.add_argument("--passes", type=names(PASSES), default=list(PASSES), help="forward, both (with backward)")
    parser.add_argument("--backends", type=names(BACKENDS), default=list(BACKENDS), help=f"from {', '.join(BACKENDS)}")
    parser.add_argument("--rounds", type=count, default=7, help="samples a figure; the median is reported (default: 7)")
    parser.add_argument("--device", default=None, help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--output", type=Path, default=Path("runs/throughput"), help="folder of the results")


def run(options: argparse.Namespace) -> int:
    """Measure the grid, print the table, write throughput.json, table.csv and report.html."""
    import torch
    from rich.console import Console

    from experiments.throughput.report import print_table, write_results

    device = device_of(options.device)
    # cuDNN would otherwise answer a float32 question in tf32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    peaks = {name: peak_tflops(getattr(torch, name), device) for name in options.dtypes}
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    grid = list(itertools.product(options.dtypes, options.hidden_sizes, options.time_steps, options.batch_sizes))
    for number, (dtype, hidden_size, time_steps, batch_size) in enumerate(grid, start=1):
        console.log(f"{number}/{len(grid)}: {dtype}, {hidden_size} units, {time_steps} steps, mini-batch {batch_size}")
        for row in measure(
            hidden_size, batch_size, time_steps, dtype, options.backends, options.passes, options.rounds, device, peaks
        ):
            rows.append(row)
        if any(row["us_per_step"] is not None for row in rows):  # a page without a figure says nothing
            write_results(options.output, rows, peaks, device)
    if all(row["us_per_step"] is None for row in rows):
        why = dict.fromkeys(f"{row['backend']}: {row['reason']}".rstrip(".") for row in rows)
        print(f"error: no backend was timed, nothing is written; {'; '.join(why)}", file=sys.stderr)
        return EXIT_FAILED
    print_table(rows)
    print(f"wrote {options.output / 'report.html'}")
    return 0


def measure(
    hidden_size: int,
    batch_size: int,
    time_steps: int,
    dtype: str,
    backends: list[str],
    passes: list[str],
    rounds: int,
    device: Any,
    peaks: dict[str, float],
) -> Iterator[dict[str, Any]]:
    """The rows of one problem: check every rival, then time those that passed, in turn."""
    import torch

    from experiments.throughput.rivals import Problem, RivalFailedError, rival, unavailable
    from experiments.throughput.timing import alternate

    problem = Problem.draw(time_steps, batch_size, hidden_size, getattr(torch, dtype), device)
    judge = Judge(problem)
    contestants = {}
    for backend in backends:
        reasons = unavailable(backend, problem)
        if not reasons:
            try:
                contestants[backend] = rival(backend, problem)
            except RivalFailedError as failure:
                reasons = [str(failure)]
        if reasons:
            yield from (_row(backend, problem, dtype, each, reason="; ".join(reasons)) for each in passes)
    passed = {}
    for backend, contestant in contestants.items():
        error, allowed = judge.error(contestant.both(), contestant.activation)
        if not error <= allowed:  # NaN fails too
            reason = f"result differs from the reference: error {error:.2e}, allowed {allowed:.2e}; no speed reported"
            yield from (
                _row(backend, problem, dtype, each, contestant.activation, error=(error, allowed), reason=reason)
                for each in passes
            )
            continue
        passed[backend] = (contestant, error, allowed)
    for each in passes:
        timings = alternate(
            {name: getattr(contestant, each) for name, (contestant, _, _) in passed.items()},
            device=device,
            rounds=rounds,
        )
        for name, timing in timings.items():
            contestant, error, allowed = passed[name]
            yield _row(
                name,
                problem,
                dtype,
                each,
                contestant.activation,
                timing=timing,
                error=(error, allowed),
                peak=peaks[dtype],
            )


class Judge:
    """Errors of (output, grad_x, grad_weight_hh) against float64, as the worst of the three relative L2 norms."""

    def __init__(self, problem: Any) -> None:
        self._problem = problem
        self._by_activation: dict[str, tuple[Any, float]] = {}

    def error(self, outputs: Any, activation: str) -> tuple[float, float]:
        """The error of these outputs, and what is allowed."""
        import torch

        from experiments.throughput.rivals import reference_outputs

        if activation not in self._by_activation:
            truth = reference_outputs(self._problem.to(torch.float64), activation)
            same_precision = reference_outputs(self._problem, activation)
            rounding = torch.finfo(self._problem.x.dtype).eps
            allowed = ERROR_FACTOR * _worst(same_precision, truth) + rounding
            self._by_activation[activation] = truth, allowed
        truth, allowed = self._by_activation[activation]
        return _worst(outputs, truth), allowed


def _worst(outputs: Any, truth: Any) -> float:
    pairs = zip(outputs, truth, strict=True)
    return max(((mine.double() - exact).norm() / exact.norm()).item() for mine, exact in pairs)


def peak_tflops(dtype: Any, device: Any, size: int = 8192) -> float:
    """Achieved TFLOP/s of one large matrix product in this precision: the ceiling that shares refer to."""
    import torch

    from experiments.throughput.timing import alternate

    size = size if device.type == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    timing = alternate({"product": lambda: left @ right}, device=device, rounds=5)["product"]
    return 2 * size**3 / timing.median / 1e12


def _row(
    backend: str,
    problem: Any,
    dtype: str,
    which_pass: str,
    activation: str = "relu",
    *,
    timing: Any = None,
    error: tuple[float, float] | None = None,
    reason: str | None = None,
    peak: float | None = None,
) -> dict[str, Any]:
    time_steps, batch_size, hidden_size = problem.x.shape
    flops = 2 * hidden_size**2 * batch_size * (1 if which_pass == "forward" else 3)
    micro = [None] * 3 if timing is None else [t * 1e6 / time_steps for t in (timing.median, timing.low, timing.high)]
    tflops = None if micro[0] is None else flops / micro[0] / 1e6
    row = Row(
        backend=backend,
        hidden_size=hidden_size,
        batch_size=batch_size,
        time_steps=time_steps,
        dtype=dtype,
        activation=activation,
        us_per_step=micro[0],
        us_per_step_low=micro[1],
        us_per_step_high=micro[2],
        tflops=tflops,
        share_of_peak=None if tflops is None or peak is None else tflops / peak,
        error=error and error[0],
        error_allowed=error and error[1],
        reason=reason,
    )
    return {**asdict(row), "pass": which_pass}
