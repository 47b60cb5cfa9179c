"""`fit` cut short at a chosen hook and gone on with, many times over: every run is a fork of one process that has
imported everything once, so that a run costs a second and may be killed.

    python interrupted_fits.py '{"options": [...], "folder": "...", "ranks": 1, "cases": [[how, where, at], ...]}'

FOLDER/whole is the undisturbed run; FOLDER/0, FOLDER/1, ... are the cases. `how` is TERM or INT (signals), KILL, or
"RARE KILL", where checkpoints are made at the end of epochs only, otherwise after every step; `where` names a hook,
with `before:` as the first callback of a run sees it, with `after:` as the last one, the checkpoint, leaves it; `at`
counts its calls from 1. Printed at the end: `{"whole": [exit codes, output], "0": [first call, second call], ...}`.
"""

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED = 77
SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT}
AT_ONCE = 2  # cases


def interrupt(how: str, where: str, at: int, rank: int) -> None:
    """Have this process end itself, if it is the last rank: the others must learn of it."""
    from experiments.run.callbacks.checkpoints import LastCheckpoint
    from experiments.run.callbacks.position import Position

    when, hook = where.split(":")
    seen = 0

    def seeing(original: Callable[..., Any]) -> Callable[..., Any]:
        def seen_by(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            answer = original(*arguments, **options)
            seen += 1
            if seen == at and how in SIGNALS:
                os.kill(os.getpid(), SIGNALS[how])
            elif seen == at:
                os._exit(KILLED)
            return answer

        return seen_by

    if how not in SIGNALS or rank == RANKS - 1:
        callback = Position if when == "before" else LastCheckpoint
        setattr(callback, hook, seeing(getattr(callback, hook)))


def fit(output: Path, options: list[str], case: tuple[str, str, int] | None) -> tuple[list[int], str]:
    """One call in fresh processes, one a rank: their exit codes and what they printed."""
    with tempfile.TemporaryFile("w+") as said, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ranks = []
        for rank in range(RANKS):
            if process := os.fork():
                ranks.append(process)
                continue
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            code = 99
            try:
                code = fit_here(rank, port, [*options, f"--output={output}"], case)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        said.seek(0)
        return codes, said.read()


def fit_here(rank: int, port: int, options: list[str], case: tuple[str, str, int] | None) -> int:
    """In this process."""
    from experiments.cli import main

    if RANKS > 1:
        from pytorch_lightning.utilities.rank_zero import rank_zero_only

        rank_zero_only.rank = rank  # type: ignore[attr-defined]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": RANKS, "NODE_RANK": 0}
        os.environ |= {name: str(value) for name, value in (place | {"LOCAL_RANK": rank, "RANK": rank}).items()}
    if case is not None:
        interrupt(*case, rank)
    return main(["fit", *options])


def both(number: int, case: tuple[str, str, int]) -> None:
    """Cut short, then gone on with; in a process of its own."""
    output = FOLDER / str(number)
    often = [] if case[0] == "RARE KILL" else ["--checkpoint_minutes=0"]
    said = [fit(output, [*OPTIONS, *often], case), fit(output, OPTIONS, None)]
    (FOLDER / f"{number}.json").write_text(json.dumps(said))


def main() -> None:
    """All of them."""
    from experiments.run import provenance

    provenance.commit = lambda: "as it is"  # somebody may commit while this runs
    said = {"whole": fit(FOLDER / "whole", OPTIONS, None)}
    running = 0
    for number, case in enumerate(CASES):
        if os.fork() == 0:
            both(number, case)
            os._exit(0)
        running += 1
        if running == AT_ONCE:
            os.wait()
            running -= 1
    while running:
        os.wait()
        running -= 1
    said |= {str(number): json.loads((FOLDER / f"{number}.json").read_text()) for number in range(len(CASES))}
    print(json.dumps(said))


if __name__ == "__main__":
    GIVEN = json.loads(sys.argv[1])
    OPTIONS, FOLDER, RANKS = GIVEN["options"], Path(GIVEN["folder"]), GIVEN["ranks"]
    CASES = [(how, where, at) for how, where, at in GIVEN["cases"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
    import torch

    import models.error_rate
    from experiments import training  # once, for all forks

    # Parsers of the other commands are a third of the time of so short a run.
    training.LIGHTNING = {"fit": training.LIGHTNING["fit"]}
    fit_alone = {"fit": training.TrainingCLI.subcommands()["fit"]}
    training.TrainingCLI.subcommands = staticmethod(lambda: fit_alone)  # type: ignore[method-assign]
    torch.set_num_threads(1)
    # A network that has learnt nothing gets every word wrong in every epoch; its characters tell epochs apart.
    models.error_rate.ErrorCounts.wer = property(lambda counts: counts.cer)  # type: ignore[assignment,method-assign]
    main()
