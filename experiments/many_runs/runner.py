"""Executes a list of runs as processes: in slots, resumable, none orphaned, one failure never stopping the others.

A run is a command and a folder; its folder is all that is known of it. A run that `run_folder.locate` finds done is
kept as it is. Anything else is started (again): the run itself goes on from its last checkpoint.

A run has a slot (`slots.py`) to itself. The costliest runs start first, so that the end of a study is not one deep run
on an otherwise idle machine.

What ends how:
  a run exits without a result   recorded as `failed` with the last line of its log
  a run is killed by a signal    started again, at most `RESTARTS` times, then recorded as `failed`
  Ctrl-C or SIGTERM              every run gets SIGTERM, after `GRACE_SECONDS` SIGKILL
  kill -9 of the runner          the kernel kills the runs with it (PR_SET_PDEATHSIG, Linux)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from experiments.many_runs.early_stop import Judge, record_early_stop, stopped_early
from experiments.many_runs.progress_board import ProgressBoard, RunLine
from experiments.many_runs.slots import Slot, die_with_parent, free_port
from experiments.run.folder import locate
from experiments.run.result import FILE_NAME, Result, read_result

RESTARTS = 2
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Run:
    """One run to execute. `cost` is relative to the other runs: for the order they start in and the time left."""

    name: str
    folder: Path
    command: tuple[str, ...]
    config: dict[str, Any]
    config_hash: str
    cost: float = 1.0

    @property
    def seed(self) -> int:
        return int(self.config.get("seed_everything") or 0)

    @property
    def epochs(self) -> int | None:
        epochs = self.config.get("trainer", {}).get("max_epochs")
        return epochs if isinstance(epochs, int) and epochs > 0 else None


@dataclass
class _Active:
    run: Run
    slot: Slot
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    port: int
    line: RunLine
    metrics: MetricsTail
    result_before: int | None
    stopped: str | None = None


@dataclass
class MetricsTail:
    """Reads what a run has appended to its `metrics.jsonl` since the last look; a half-written last line waits.

    A run that goes on from a checkpoint writes the file anew, so that this may come to stand within a line: the rest of
    that line is passed over.
    """

    path: Path
    offset: int = 0
    rest: bytes = field(default=b"", repr=False)

    def new_lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self.offset:  # rewound by a run that goes on from its last checkpoint
                    self.offset, self.rest = size, b""
                file.seek(self.offset)
                chunk = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(chunk)
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [line for line in lines if _is_json(line)]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def execute(runs: Sequence[Run], slots: Sequence[Slot], board: ProgressBoard, *, commit: str | None,
            reuse_commit: bool = False, judge: Judge | None = None) -> None:  # fmt: skip
    """Run everything in `runs` that is not found done; afterwards each folder holds a `result.json`.

    `commit` is that of the code: a result of another one is kept only with `reuse_commit`.
    `judge` is shown what each run has logged and may have it stopped (`early_stop.py`).
    Raises ValueError, before anything starts, where two runs share a folder, or a folder holds another run or half a
    result.
    Raises KeyboardInterrupt after Ctrl-C or SIGTERM, with every run ended before it does.
    """
    lines = {run.folder: RunLine(run.name, epochs=run.epochs, cost=run.cost) for run in runs}
    if len(lines) < len(runs):
        raise ValueError("Two of the runs have the same folder; give each its own.")
    waiting: list[Run] = []
    for run in sorted(runs, key=lambda run: -run.cost):
        found = locate(
            run.config_hash, commit, name=run.name, seed=run.seed, output=str(run.folder), reuse_commit=reuse_commit,
            data=run.config.get("data"),
        )  # fmt: skip
        kept = found.finished or stopped_early(run.folder)
        if kept is not None:
            lines[run.folder].end(kept, kept=True)
            if judge is not None:
                judge(run.name, MetricsTail(run.folder / "metrics.jsonl").new_lines())
        else:
            waiting.append(run)
            if found.put_aside:
                lines[run.folder].told = "; ".join(found.messages)
    restarts: dict[Path, int] = {}
    free, active = list(slots), list[_Active]()
    with _terminated_as_interrupt(), board.showing([lines[run.folder] for run in runs]):
        try:
            while waiting or active:
                while waiting and free:
                    run = waiting.pop(0)
                    active.append(_start(run, free.pop(0), lines[run.folder], {one.port for one in active}, judge))
                for one in list(active):
                    new = one.metrics.new_lines()
                    one.line.read(new)
                    if judge is not None and one.stopped is None and (reason := judge(one.run.name, new)):
                        one.stopped = reason
                        _signal_group(one.process, signal.SIGTERM)
                    if one.process.poll() is None:
                        continue
                    active.remove(one)
                    free.append(one.slot)
                    if _settle(one, restarts):
                        waiting.insert(0, one.run)
                board.refresh()
                if active:
                    time.sleep(POLL_SECONDS)
        finally:
            _end(active)


def _start(run: Run, slot: Slot, line: RunLine, ports: set[int], judge: Judge | None) -> _Active:
    run.folder.mkdir(parents=True, exist_ok=True)
    metrics = MetricsTail(run.folder / "metrics.jsonl")
    before = metrics.new_lines()
    line.read(before)
    if judge is not None:
        judge(run.name, before)
    line.start()
    port = free_port(ports)
    environment = {
        **os.environ,
        **slot.environment,
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }
    result_before = _written(run.folder / FILE_NAME)
    log = (run.folder / "log.txt").open("ab")
    process = subprocess.Popen(
        run.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid()),
    )
    return _Active(run, slot, process, log, port, line, metrics, result_before)


def _settle(one: _Active, restarts: dict[Path, int]) -> bool:
    """Record how a run ended; True where it is to be started again."""
    one.log.close()
    code = one.process.returncode
    # What the run itself started (loader workers, ranks) must not outlive it into its second start.
    with suppress(ProcessLookupError):
        os.killpg(one.process.pid, signal.SIGKILL)
    # A result that was there before is not this start's: the run died before it could put it aside.
    fresh = _written(one.run.folder / FILE_NAME) != one.result_before
    record = read_result(one.run.folder) if fresh else None
    if record is None and code < 0:
        count = restarts[one.run.folder] = restarts.get(one.run.folder, 0) + 1
        name = signal.Signals(-code).name
        if count <= RESTARTS:
            one.line.restart(f"killed by {name}")
            return True
        record = _record_failure(one.run, f"killed by {name} {count} times (out of memory?)")
    elif record is None:
        record = _record_failure(one.run, last_words(one.run.folder / "log.txt", code))
    elif one.stopped is not None and record["status"] == "stopped":
        record = record_early_stop(one.run.folder, record, one.stopped)
    one.line.end(record)
    return False


def _record_failure(run: Run, reason: str) -> dict[str, Any]:
    """Write the result that a run could not write itself, and return it. An older result is kept beside it."""
    if (run.folder / FILE_NAME).exists():
        (run.folder / FILE_NAME).replace(run.folder / "result.before.json")
    Result(run.name, run.config, run.config_hash, run.seed, status="failed", reason=reason).write(run.folder)
    record = read_result(run.folder)
    assert record is not None
    return record


def last_words(log: Path, code: int) -> str:
    """The sentence with which a run ended: the last line of its log that is not indented, or its exit code."""
    lines = log.read_bytes()[-20_000:].decode("utf-8", "replace").splitlines()
    said = [line.strip() for line in lines if line.strip() and not line[0].isspace()]
    return said[-1][:500] if said else f"exit code {code}, nothing in the log"


def _written(path: Path) -> int | None:
    """When the file was written, in nanoseconds: tells a new result from one that was there before."""
    return path.stat().st_mtime_ns if path.exists() else None


def _end(active: list[_Active]) -> None:
    for one in active:
        _signal_group(one.process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for one in active:
        try:
            one.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal_group(one.process, signal.SIGKILL)
            one.process.wait()
        one.log.close()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
