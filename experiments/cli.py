"""`python -m experiments COMMAND ...`: the one door to training and to every study.

`fit`, `validate`, `test` and `predict` are Lightning's own commands over a YAML card (`training.py`). Every other
command is a module with `add_arguments(parser)` and `run(options) -> int`, imported only when its name is typed, so
that `--help` answers at once. What a user got wrong ends in one line that starts with `error:` and exit code 2.

Exit codes: 0 finished, 1 failed, 2 the command or its config is wrong, 3 diverged, 4 stopped from outside.
"""

import argparse
import difflib
import importlib
import sys
from importlib.util import find_spec
from typing import NamedTuple

from data.one_sentence_parser import OneSentenceParser

EXIT_FINISHED, EXIT_FAILED, EXIT_USAGE, EXIT_DIVERGED, EXIT_STOPPED = range(5)


class Command(NamedTuple):
    """One line of `python -m experiments --help`."""

    module: str
    summary: str
    example: str


CARD = "--config experiments/configs/fsdd.yaml"
CHECKPOINT = "runs/NAME/checkpoints/best.ckpt"
LIGHTNING = {
    "fit": Command("experiments.training", "train one run, then test its best checkpoint", f"fit {CARD}"),
    "validate": Command(
        "experiments.training",
        "error rate on the dev set",
        f"validate --config runs/NAME/config.yaml --ckpt_path {CHECKPOINT}",
    ),
    "test": Command(
        "experiments.training",
        "error rate on the test set",
        f"test --config runs/NAME/config.yaml --ckpt_path {CHECKPOINT}",
    ),
    "predict": Command(
        "experiments.training",
        "hypotheses of the test set",
        f"predict --config runs/NAME/config.yaml --ckpt_path {CHECKPOINT}",
    ),
}
STUDIES = {
    "transcribe": Command("experiments.transcribe", "audio files to text", f"transcribe {CHECKPOINT} a.wav b.flac"),
    "depth": Command(
        "experiments.depth.command",
        "error rate and memory by depth",
        "depth --config experiments/configs/demo.yaml --output runs/demo",
    ),
    "throughput": Command(
        "experiments.throughput.command",
        "speed of one recurrent layer by mini-batch",
        "throughput --output runs/throughput",
    ),
    "memory": Command(
        "experiments.memory.command", "activation memory by depth and mini-batch", "memory --output runs/memory"
    ),
    "whole-step": Command(
        "experiments.whole_step.command",
        "speed of a whole training step by depth",
        "whole-step --output runs/whole_step",
    ),
    "stability": Command(
        "experiments.depth.stability",
        "do networks of a depth start and keep training",
        "stability --output runs/stability",
    ),
    "batch-size": Command(
        "experiments.batch_size.command",
        "samples and steps to a dev loss by algorithmic batch",
        "batch-size --config experiments/configs/batch_size.yaml --output runs/batch-size",
    ),
    "batch-statistics": Command(
        "experiments.batch_statistics.command",
        "local, synchronised and re-estimated batch norm at a small mini-batch",
        "batch-statistics --config experiments/configs/studies/batch_statistics.yaml --output runs/batch-statistics",
    ),
    "scaling": Command("experiments.scaling.command", "throughput by number of GPUs", "scaling --output runs/scaling"),
    "plan": Command(
        "experiments.plan.command",
        "GPUs, batch, hours and memory of a run before it is started",
        "plan --num-layers 88 --hidden-size 1152 --corpus-hours 17000 --gpus 128 --interconnect ib-hdr",
    ),
}


def commands() -> dict[str, Command]:
    """The commands whose module is there."""
    return {name: c for name, c in (LIGHTNING | STUDIES).items() if find_spec(c.module) is not None}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. `arguments` are those after `python -m experiments`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    known = commands()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help(known))
        return EXIT_FINISHED if arguments else EXIT_USAGE
    name, *rest = arguments
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
        return _refuse(f"{name} is not a command; {meant}")
    try:
        return _train(name, rest) if name in LIGHTNING else _study(name, known[name], rest)
    except ValueError as error:
        return _refuse(str(error))


def _train(name: str, rest: list[str]) -> int:
    if "-h" in rest or "--help" in rest:
        from experiments.training_help import training_help

        print(training_help(name))
        return EXIT_FINISHED
    from experiments.arguments import plain

    plain(rest)  # a file that is missing or no card is told before six seconds of imports
    everything = [word for word in rest if word in ("--help=all", "--help-all")]
    if not everything and not any(word.startswith(("--config", "-c", "--data")) for word in rest):
        card = "experiments/configs/fsdd.yaml (fit --help lists all)" if name == "fit" else "runs/NAME/config.yaml"
        raise ValueError(f"{name} needs a card; give --config {card}")
    module = importlib.import_module(LIGHTNING[name].module)
    return int(module.run(name, ["--help"] if everything else rest))


def _study(name: str, command: Command, rest: list[str]) -> int:
    module = importlib.import_module(command.module)
    parser = OneSentenceParser(
        prog=f"python -m experiments {name}",
        description=module.__doc__,
        epilog=f"example: python -m experiments {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.usage = _usage(parser)
    return int(module.run(parser.parse_args(rest)))


def _usage(parser: argparse.ArgumentParser) -> str:
    """What must be given alone: the options stand below, with a line each."""
    must = [action for action in parser._actions if action.required]
    words = [" ".join([*action.option_strings[:1], str(action.metavar or action.dest.upper())]) for action in must]
    words += ["..."] * (bool(must) and must[-1].nargs == "+")
    return " ".join([parser.prog, *words, "[options]"])


def _refuse(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return EXIT_USAGE


def _help(known: dict[str, Command]) -> str:
    lines = ["usage: python -m experiments COMMAND ...", "", "commands:"]
    lines += [f"  {name:<12} {command.summary}" for name, command in known.items()]
    lines += ["", "examples:"]
    lines += [f"  python -m experiments {command.example}" for command in known.values()]
    lines += ["", "`python -m experiments COMMAND --help` says more about one."]
    return "\n".join(lines)
