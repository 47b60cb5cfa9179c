"""The runner against a stand-in for a training run: what is kept, restarted, recorded, ended."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from experiments.many_runs.progress_board import ProgressBoard, RunLine, clock
from experiments.many_runs.runner import MetricsTail, Run, execute, last_words
from experiments.many_runs.slots import Slot, machine_slots
from experiments.run.result import read_result

STUDY_RUN = Path(__file__).with_name("study_run.py")
SLOTS = [Slot({"OMP_NUM_THREADS": "1"}), Slot({"OMP_NUM_THREADS": "1"})]


def a_run(root: Path, name: str, *options: str, cost: float = 1.0) -> Run:
    folder = root / name
    command = (sys.executable, str(STUDY_RUN), "--output", str(folder), *options)
    return Run(name, folder, command, {"seed_everything": 0, "trainer": {"max_epochs": 3}}, "0" * 64, cost)


def board() -> tuple[ProgressBoard, io.StringIO]:
    text = io.StringIO()
    return ProgressBoard(Console(file=text, width=200)), text


def status(run: Run) -> str:
    result = read_result(run.folder)
    assert result is not None
    return str(result["status"])


def starts(run: Run) -> int:
    return len((run.folder / "pids.txt").read_text().splitlines())


def epochs_trained(run: Run) -> list[int]:
    return [json.loads(line)["epoch"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def test_one_failed_or_diverged_run_does_not_stop_the_others(tmp_path: Path) -> None:
    bad, lost = a_run(tmp_path, "bad", "--behave", "fail"), a_run(tmp_path, "lost", "--behave", "diverge")
    good = [a_run(tmp_path, f"good-{i}") for i in range(2)]
    shown, text = board()
    execute([bad, good[0], lost, good[1]], SLOTS, shown, commit=None)
    assert [status(run) for run in (bad, lost, *good)] == ["failed", "diverged", "finished", "finished"]
    failed = read_result(bad.folder)
    assert failed is not None
    assert failed["reason"] == "ValueError: num_layers is 0; give at least 1."
    assert "bad: failed (ValueError: num_layers is 0; give at least 1.)" in text.getvalue()
    assert "good-0: finished, test WER 10.0 %" in text.getvalue()
    assert "epoch 2/3, loss 4.5, dev WER 25.0 %, 100 audio s/s" in text.getvalue()


def test_what_has_ended_is_kept_and_what_failed_is_tried_again(tmp_path: Path) -> None:
    kept, lost = a_run(tmp_path, "kept"), a_run(tmp_path, "lost", "--behave", "diverge")
    bad = a_run(tmp_path, "bad", "--behave", "fail")
    execute([kept, lost, bad], SLOTS, board()[0], commit=None)
    before = [(run.folder / "result.json").read_bytes() for run in (kept, lost)]
    execute([kept, lost, bad], SLOTS, board()[0], commit=None)
    assert [(run.folder / "result.json").read_bytes() for run in (kept, lost)] == before
    assert [starts(run) for run in (kept, lost, bad)] == [1, 1, 2]


def test_a_result_of_another_commit_is_reused_only_when_asked(tmp_path: Path) -> None:
    run = a_run(tmp_path, "run", "--epochs", "1")
    execute([run], SLOTS, board()[0], commit=None)
    execute([run], SLOTS, board()[0], commit="abc", reuse_commit=True)
    assert starts(run) == 1
    execute([run], SLOTS, board()[0], commit="abc")
    assert starts(run) == 2


def test_a_run_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    run = a_run(tmp_path, "run", "--behave", "die-once")
    shown, text = board()
    execute([run], SLOTS, shown, commit=None)
    assert status(run) == "finished"
    assert starts(run) == 2
    assert epochs_trained(run) == [0, 1, 2]
    assert "killed by SIGKILL, starts again" in text.getvalue()


def test_a_run_that_is_killed_again_and_again_is_recorded_and_passed_by(tmp_path: Path) -> None:
    run, other = a_run(tmp_path, "run", "--behave", "die", "--epochs", "99"), a_run(tmp_path, "other")
    execute([run, other], SLOTS[:1], board()[0], commit=None)
    result = read_result(run.folder)
    assert result is not None
    assert (result["status"], result["reason"]) == ("failed", "killed by SIGKILL 3 times (out of memory?)")
    assert status(other) == "finished"


def test_runs_get_their_own_devices_threads_and_ports(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, f"run-{i}", "--seconds", "0.3", "--epochs", "1") for i in range(2)]
    slots = [Slot({"CUDA_VISIBLE_DEVICES": str(i), "OMP_NUM_THREADS": "1"}) for i in range(2)]
    execute(runs, slots, board()[0], commit=None)
    said = [json.loads((run.folder / "log.txt").read_text()) for run in runs]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in said} == {"0", "1"}
    assert len({one["MASTER_PORT"] for one in said}) == 2


def test_the_costliest_run_starts_first(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, f"cost-{cost}", "--epochs", "1", cost=cost) for cost in (1, 8, 4)]
    shown, text = board()
    execute(runs, SLOTS[:1], shown, commit=None)
    order = [line.split(":")[0] for line in text.getvalue().splitlines() if line.endswith(": starts")]
    assert order == ["cost-8", "cost-4", "cost-1"]


def test_half_a_result_is_told_before_anything_starts(tmp_path: Path) -> None:
    good, half = a_run(tmp_path, "good"), a_run(tmp_path, "half")
    half.folder.mkdir()
    (half.folder / "result.json").write_text('{"status": "fin')
    with pytest.raises(ValueError, match=r"half/result\.json is not a run's result .*; delete it"):
        execute([good, half], SLOTS, board()[0], commit=None)
    assert not (good.folder / "pids.txt").exists()


def test_a_run_that_dies_at_once_does_not_pass_for_what_was_there_before(tmp_path: Path) -> None:
    run = a_run(tmp_path, "run", "--epochs", "1")
    execute([run], SLOTS, board()[0], commit=None)
    broken = Run(
        run.name, run.folder, (sys.executable, "-c", "raise SystemExit('no torch')"), run.config, run.config_hash
    )
    execute([broken], SLOTS, board()[0], commit="abc")
    assert status(run) == "failed"
    assert json.loads((run.folder / "result.before.json").read_text())["status"] == "finished"


RUNNER = """
import signal
import sys
from pathlib import Path
from rich.console import Console
from experiments.many_runs.progress_board import ProgressBoard
from experiments.many_runs.runner import Run, execute
from experiments.many_runs.slots import Slot
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
root = Path(sys.argv[1])
options = ("--epochs", "6", "--seconds", sys.argv[3])
command = lambda name: (sys.executable, sys.argv[2], "--output", str(root / name), *options)
runs = [Run(f"r{i}", root / f"r{i}", command(f"r{i}"), {}, "0" * 64) for i in range(3)]
try:
    execute(runs, [Slot({}), Slot({})], ProgressBoard(Console()), commit=None)
except KeyboardInterrupt:
    sys.exit(130)
"""


def start_runner(root: Path, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", RUNNER, str(root), str(STUDY_RUN), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2])


def running(root: Path) -> list[int]:
    """Process ids of the runs that have been started and still live."""
    pids = [int(line.split()[0]) for path in root.glob("*/pids.txt") for line in path.read_text().splitlines()]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "study_run" in cmdline(pid)]


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_for(condition: object, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG and /proc are Linux's")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_the_runner_and_a_second_one_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    runner = start_runner(tmp_path, 0.15)
    wait_for(lambda: len(list(tmp_path.glob("*/last.txt"))) == 2)
    assert len(running(tmp_path)) == 2
    runner.send_signal(how)
    code = runner.wait(15)
    assert code == (-9 if how == signal.SIGKILL else 130)
    wait_for(lambda: not running(tmp_path), 3.0)
    assert not (tmp_path / "r2").exists()
    assert start_runner(tmp_path, 0.02).wait(30) == 0
    for name in ("r0", "r1", "r2"):
        result = read_result(tmp_path / name)
        assert result is not None
        assert result["status"] == "finished"
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(6))


def test_the_tail_waits_for_whole_lines_and_follows_a_rewound_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.new_lines() == []
    path.write_bytes(b'{"step": 1}\n{"st')
    assert tail.new_lines() == [b'{"step": 1}']
    with path.open("ab") as file:
        file.write(b'ep": 2}\n{"step": 3}\n{"half')
    assert tail.new_lines() == [b'{"step": 2}', b'{"step": 3}']
    path.write_bytes(b'{"step": 1}\n')
    assert tail.new_lines() == []
    with path.open("ab") as file:
        file.write(b'{"step": 2}\n')
    assert tail.new_lines() == [b'{"step": 2}']


def test_the_last_words_are_the_error_not_its_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("epoch 1\nTraceback (most recent call last):\n  File x\n    code\nOSError: disk full\n\n")
    assert last_words(log, 1) == "OSError: disk full"
    log.write_text("")
    assert last_words(log, 3) == "exit code 3, nothing in the log"


def test_cpu_slots_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [slot.environment["OMP_NUM_THREADS"] for slot in machine_slots(2, "cpu")] == ["4", "4"]
    assert [slot.environment["OMP_NUM_THREADS"] for slot in machine_slots(None, "cpu")] == ["1"] * 8
    assert [slot.environment["OMP_NUM_THREADS"] for slot in machine_slots(None, "cpu", runs=3)] == ["2"] * 3
    with pytest.raises(ValueError, match="--jobs is 0; give a positive number"):
        machine_slots(0, "cpu")


def test_gpu_slots_are_the_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in machine_slots()] == ["3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in machine_slots(3)] == ["0", "1", "0"]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in machine_slots(gpus=2)] == ["0,1"]
    with pytest.raises(ValueError, match="--gpus is 3 and 2 GPUs can be used here; give a number from 1 to that"):
        machine_slots(gpus=3)


def test_gpus_that_fill_no_slot_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.many_runs.slots._visible_gpus", lambda: list("01234567"))
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in machine_slots(gpus=3)] == ["0,1,2", "3,4,5"]
    with pytest.raises(ValueError, match="--gpus is 2 and 0 GPUs can be used here"):
        machine_slots(accelerator="cpu", gpus=2)


def test_a_terminal_shows_a_line_a_run_and_the_time_left() -> None:
    text = io.StringIO()
    shown = ProgressBoard(Console(file=text, force_terminal=True, width=120))
    lines = [RunLine("layers-8", epochs=4, cost=8.0), RunLine("layers-1", epochs=4)]
    with shown.showing(lines):
        assert shown.seconds_left() is None
        lines[0].start()
        lines[0].read([b'{"epoch": 1, "train/loss": 2.5, "val/wer": 0.25, "perf/audio_seconds_per_second": 812.4}'])
        time.sleep(0.01)
        left = shown.seconds_left()
        assert left is not None
        assert left > 0
        shown.refresh()
        lines[1].end({"status": "failed", "reason": "no such manifest"})
    said = text.getvalue()
    assert "2/4" in said
    assert "25.0 %" in said
    assert "812" in said
    assert "no such manifest" in said
    assert clock(3723) == "1:02:03"


def test_the_tail_passes_over_what_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    assert len(tail.new_lines()) == 2
    # Rewound to step 1 and grown past where the tail stood before it looked again: it now stands within a line.
    path.write_bytes(b'{"step": 1}\n{"step": 2, "train/loss": 3.5}\n\n{"step": 3}\n')
    assert tail.new_lines() == [b'{"step": 3}']
