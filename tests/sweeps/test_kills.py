"""A sweep of twelve small runs meets `kill -9` of a run, of its dashboard and of its runner, one after the other."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sweeps.study import gather
from tests.sweeps.small_card import small_card

ROOT = Path(__file__).parents[2]
EPOCHS = 6


def twelve(folder: Path, card: Path) -> Path:
    content = {
        "name": "Twelve",
        "method": "grid",
        "command": ["python", "-m", "experiments", "fit", "--config", str(card), "--config", "${args_json}"],
        "parameters": {"model.num_layers": {"values": [1, 2, 3]}, "seed_everything": {"values": [0, 1, 2, 3]}},
    }  # fmt: skip
    path = folder / "twelve.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_is_repeated(tmp_path: Path, synth_corpus: Path) -> None:
    root = tmp_path / "sweep"
    root.mkdir()
    trainer = {"accelerator": "cpu", "max_epochs": EPOCHS}
    path = twelve(tmp_path, small_card(tmp_path, synth_corpus, trainer=trainer, checkpoint_minutes=0.0))
    command = [sys.executable, "-m", "sweeps", "run", str(path), f"--output={root}", "--reuse-commit", "--jobs=2"]
    with started(command) as runner, dashboard(root) as (page, watcher):
        # A run, in mid-training: what it had logged by its last checkpoint stays, it goes on behind.
        wait_for(lambda: len(ended(root)) >= 2)
        killed, process = a_run_with_a_checkpoint(runner.pid)
        os.kill(process, signal.SIGKILL)
        logged = checkpointed(killed)
        wait_for(lambda: (killed / "result.json").exists())
        assert json.loads((killed / "result.json").read_text())["status"] == "finished"
        assert lines(killed)[: len(logged)] == logged
        # The dashboard: the runs do not notice, and another one shows what this one did.
        assert "finished" in page()
        watcher.kill()
        before = len(ended(root))
        wait_for(lambda: len(ended(root)) > before)
        # The runner: its runs end with it, what had ended stays as it is.
        assert len(ended(root)) < 11
        runner.kill()
        runner.wait()
        wait_for(lambda: not [one for one in processes() if str(root) in one[1] and "fit" in one[1]])
    kept = ended(root)
    half_way = {folder: checkpointed(folder) for folder in root.glob("runs/*") if folder not in kept}
    with dashboard(root) as (page, _):
        assert f"{len(kept)} finished" in page()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    rows, _ = gather(root)
    assert [row["status"] for row in rows] == ["finished"] * 12
    assert len({(row["num_layers"], row["seed"]) for row in rows}) == 12
    # Nothing repeated: no finished run was touched, and every epoch of every run is told once.
    assert {folder: ended(root)[folder] for folder in kept} == kept
    for folder in root.glob("runs/*"):
        for metric in ("val/wer", "train/skipped_utterances"):
            assert [line["epoch"] for line in lines(folder) if metric in line] == list(range(EPOCHS)), (folder, metric)
    # Nothing lost: what had been logged by the last checkpoint is there as it was, times and all.
    for folder, logged in half_way.items():
        assert lines(folder)[: len(logged)] == logged
    assert "Word error rate by depth" in (root / "report.html").read_text()


def ended(root: Path) -> dict[Path, int]:
    """Folders that have a result, and when it was written."""
    return {path.parent: path.stat().st_mtime_ns for path in root.glob("runs/*/result.json")}


def lines(folder: Path) -> list[dict[str, Any]]:
    """What a run has logged; half a line at the end is none."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def checkpointed(folder: Path) -> list[dict[str, Any]]:
    """What a run that was killed had logged by its last checkpoint, after which it goes on."""
    path = folder / "checkpoints" / "last.ckpt"
    if not path.exists():
        return []
    step = torch.load(path, weights_only=True)["global_step"]
    return [line for line in lines(folder) if line["step"] < step]


def a_run_with_a_checkpoint(runner: int) -> tuple[Path, int]:
    """Folder and process id of a run of the runner's that has not ended and could be gone on with."""
    found: list[tuple[Path, int]] = []

    def look() -> bool:
        for pid, command in processes(runner):
            folder = Path(command.rpartition("--output\0")[2].partition("\0")[0])
            if (folder / "checkpoints" / "last.ckpt").exists() and not (folder / "result.json").exists():
                found.append((folder, pid))
        return bool(found)

    wait_for(look)
    return found[0]


def processes(parent: int | None = None) -> list[tuple[int, str]]:
    """Process ids and command lines (words end in a zero byte), of all or of one's children."""
    if parent is not None:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    else:
        pids = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = []
    for pid in pids:
        try:
            found.append((int(pid), Path(f"/proc/{pid}/cmdline").read_text()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since
    return found


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def dashboard(root: Path) -> Iterator[tuple[Callable[[], str], subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            return str(answer.read().decode())

    with started([sys.executable, "-m", "sweeps", "dashboard", str(root), f"--port={port}"]) as process:
        wait_for(lambda: listens(port))
        yield page, process


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], object], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
