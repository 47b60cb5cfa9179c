"""``python -m prnn_ext benchmark | plan | build``: time the CPU backend, explain a choice, compile ahead of use."""

from __future__ import annotations

import argparse
import difflib
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn


class OneSentenceParser(argparse.ArgumentParser):
    """Says one sentence where argparse prints its usage, and ends with code 2. A few lines of the sentences of
    `data.one_sentence_parser`: the wheel carries this package alone."""

    def error(self, message: str) -> NoReturn:
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        if found := re.match(r"unrecognized arguments: ([^ =]+)", message):
            near = difflib.get_close_matches(found[1], known, n=1)
            what = "is no option" if found[1].startswith("-") else "stands alone on the command line"
            message = f"{found[1]} {what}; " + (
                f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            )
        elif found := re.match(r"the following arguments are required: (.*)", message):
            message = f"{found[1]} must be given"
        elif found := re.match(r"argument ([^:]+): expected one argument", message):
            message = f"{found[1]} has no value; give one"
        elif found := re.match(r"argument ([^:]+): invalid choice: (.*?) \(choose from (.*)\)$", message):
            message = f"{found[1]} is {found[2]}; choose from {found[3]}".replace("'", "")
        elif found := re.match(r"argument ([^:]+): (.*)$", message):
            message = f"{found[1]}: {found[2]}"
        self.exit(2, f"error: {message}; {self.prog} --help says more\n".replace("?;", "?"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneSentenceParser(prog="python -m prnn_ext", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_add_benchmark, _add_plan, _add_build):
        add(commands)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # argparse would have the parser above complain, which knows no option
        commands.choices[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return options.run(options)


def _command(
    commands: Any, name: str, purpose: str, example: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=purpose,
        description=purpose,
        epilog=f"example: python -m prnn_ext {example}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def _integers(text: str) -> list[int]:
    """``"4,8"`` -> [4, 8]."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be positive integers separated by commas, such as 4,8")
    return values


def _positive(text: str) -> int:
    values = _integers(text)
    if len(values) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be one positive integer")
    return values[0]


def _add_benchmark(commands: Any) -> None:
    purpose = "Time PersistentRNN beside torch.nn.RNN on the CPU, forward + backward, alternating in one run."
    parser = _command(commands, "benchmark", purpose, "benchmark --hidden 1152 --batch 4,32 --repeats 5", _benchmark)
    parser.add_argument("--hidden", type=_integers, default="128,256,512,1152", help="hidden sizes")
    parser.add_argument("--batch", type=_integers, default="4,8,16,32", help="mini-batches")
    parser.add_argument("--time-steps", type=_positive, default=100)
    parser.add_argument("--repeats", type=_positive, default=11, help="pairs of runs a size, at least 2")
    parser.add_argument("--threads", type=_positive, help="torch threads; torch's own choice if not given")
    parser.add_argument("--nonlinearity", choices=("relu", "tanh"), default="relu")
    parser.add_argument("--clock", choices=("wall", "process"), default="wall", help="process: processor time")


def _benchmark(options: argparse.Namespace) -> int:
    import platform
    import time

    import torch

    from prnn_ext import benchmark

    if options.repeats < 2:
        print("error: --repeats is 1; a spread needs at least 2", file=sys.stderr)
        return 2
    if options.threads:
        torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, {options.clock} clock; "
        f"float32, {options.nonlinearity}, T = {options.time_steps}, {options.repeats} alternating pairs; "
        "ms per forward + backward: median [quartiles]; ratio: torch.nn.RNN / PersistentRNN\n"
    )
    print("| hidden | batch | PersistentRNN | torch.nn.RNN | ratio |\n|---|---|---|---|---|")
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    for point in benchmark.points(
        options.hidden, options.batch, options.time_steps, options.repeats, options.nonlinearity, clock
    ):
        ours, theirs = (f"{m:.2f} [{a:.2f}, {b:.2f}]" for a, m, b in (point.ours_ms, point.torch_ms))
        print(f"| {point.hidden_size} | {point.batch_size} | {ours} | {theirs} | {point.ratio:.2f} |", flush=True)
    return 0


def _names(text: str) -> list[str]:
    return text.split(",")


def _add_plan(commands: Any) -> None:
    purpose = "Say which backend prnn_ext.rnn would take for a size, and why not the others."
    parser = _command(commands, "plan", purpose, "plan --hidden 1152 --batch 4 --dtype bfloat16", _plan)
    parser.add_argument("--hidden", type=_positive, required=True)
    parser.add_argument("--batch", type=_positive, default=4)
    parser.add_argument("--time-steps", type=_positive, default=350)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32", "float64"), default="float32")
    parser.add_argument("--activation", choices=("clipped_relu", "relu", "tanh"), default="clipped_relu")
    parser.add_argument("--device", help="such as cpu or cuda:1; the GPU if there is one, if not given")
    parser.add_argument("--backend", choices=("auto", "persistent", "cudnn", "reference"), default="auto")


def _plan(options: argparse.Namespace) -> int:
    import torch

    from prnn_ext import planning

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(options.device or ("cuda" if there else "cpu"))
    except RuntimeError:  # it lists every device that torch can be built for
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        print(
            f"error: --device {options.device} is no device of this command; say cpu, cuda or cuda:1", file=sys.stderr
        )
        return 2
    if device.type == "cuda" and (device.index or 0) >= there:
        print(f"error: --device {device} is not there (torch finds {there} CUDA devices); say cpu", file=sys.stderr)
        return 2
    shape = {"dtype": getattr(torch, options.dtype), "device": device}
    try:
        x = torch.empty(options.time_steps, options.batch, options.hidden, **shape)
        weight_hh = torch.empty(options.hidden, options.hidden, **shape)
        plan = planning.plan(x, weight_hh, activation=options.activation, backend=options.backend)
    except (planning.BackendUnavailableError, RuntimeError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"{plan.backend}{f': {plan.tiles}' if plan.tiles else ''}")
    for name, sentences in plan.reasons.items():
        print(f"not {name}: {' '.join(sentences)}")
    return 0


def _add_build(commands: Any) -> None:
    purpose = "Compile persistent kernels into the cache ahead of use; needs no GPU."
    parser = _command(
        commands, "build", purpose, "build --arch sm_90a --sizes 1152,1760 --dtype bfloat16 --cache kernels", _build
    )
    parser.add_argument("--arch", default="sm_90a", help="architecture of the GPU that will run them")
    parser.add_argument("--sizes", type=_integers, required=True, help="hidden sizes")
    parser.add_argument("--batch", type=_integers, default="4", help="mini-batches; each decides tiles alone")
    parser.add_argument("--dtype", type=_names, default="bfloat16,float32", help="storage types")
    parser.add_argument("--activation", type=_names, default="clipped_relu", help="clipped_relu, relu, tanh")
    parser.add_argument("--cache", type=Path, help="folder; PRNN_EXT_CACHE or the user's cache if not given")
    parser.add_argument("--workers", type=_positive, help="processes; one a processor if not given")


def _build(options: argparse.Namespace) -> int:
    from prnn_ext import build, compiler, kernel_cache

    try:
        wanted = build.jobs(options.sizes, options.batch, options.dtype, options.activation, options.arch)
        compiler.nvrtc_version()
    except (ValueError, compiler.CompilerMissingError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    failed = 0
    for number, built in enumerate(build.build(wanted, options.cache, options.workers), start=1):
        result = built.error or (
            f"{built.seconds:.1f} s, {built.registers} registers, {built.spilled_bytes} bytes spilled"
        )
        print(f"[{number}/{len(wanted)}] {built.job}: {result}", flush=True)
        failed += built.error is not None
    print(f"{len(wanted) - failed} of {len(wanted)} kernels in {options.cache or kernel_cache.default_cache()}")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends a command as it ends any; none here opens a socket
    sys.exit(main())
