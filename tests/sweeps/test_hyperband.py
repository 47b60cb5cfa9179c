"""Early termination: brackets as W&B counts them, who is stopped and who is not, and that the end is remembered."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.many_runs.progress_board import ProgressBoard
from experiments.many_runs.runner import Run, execute
from experiments.many_runs.slots import Slot
from experiments.run.result import read_result
from sweeps.hyperband import Hyperband, read_hyperband

STUDY_RUN = Path(__file__).parents[1] / "experiments" / "study_run.py"


def line(step: int, value: float | None) -> bytes:
    return json.dumps({"step": step, "epoch": step, "val/wer": value}).encode()


def test_brackets_are_those_of_wandb() -> None:
    assert read_hyperband({"type": "hyperband", "min_iter": 3}, "val/wer", "minimize").brackets[:3] == (3, 9, 27)
    told = {"type": "hyperband", "max_iter": 27, "s": 2}
    assert read_hyperband(told, "val/wer", "minimize").brackets == (3, 9)
    assert read_hyperband({**told, "eta": 2, "max_iter": 16}, "val/wer", "minimize").brackets == (4, 8)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"type": "envelope"}, "has one type"),
        ({"type": "hyperband"}, "needs min_iter, or max_iter and s"),
        ({"type": "hyperband", "max_iter": 9}, "needs min_iter, or max_iter and s"),
        ({"type": "hyperband", "min_iter": 0}, "min_iter is 0; give a number from 1"),
        ({"type": "hyperband", "min_iter": 3, "eta": 1}, "eta is 1; give a number from 2"),
        ({"type": "hyperband", "min_iter": 3, "patience": 2}, "early_terminate has patience"),
    ],
)
def test_a_mistake_is_told(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_hyperband(content, "val/wer", "minimize")
    with pytest.raises(ValueError, match="needs a metric"):
        read_hyperband({"type": "hyperband", "min_iter": 3}, None, "minimize")


def test_only_who_is_worse_at_a_bracket_is_stopped() -> None:
    judge = Hyperband("val/wer", (2, 4), eta=2)
    assert judge("a", [line(0, 0.9), line(1, 0.5)]) is None, "nobody to be worse than"
    assert judge("b", [line(0, 0.8), line(1, 0.3)]) is None
    reason = judge("c", [line(0, 0.7), line(1, 0.6)])
    assert reason == "val/wer 0.6 after 2 evaluations, where the best 1/2 of 3 runs had 0.5"
    assert judge("a", [line(2, 0.6)]) is None, "between brackets nothing is decided"
    assert judge("a", [line(2, 0.9), line(1, 0.9)]) is None, "a step that is read again counts once"


def test_the_best_so_far_counts_and_nothing_finite_is_worst() -> None:
    judge = Hyperband("val/wer", (2,), eta=2)
    judge("a", [line(0, 0.1), line(1, 0.9)])
    assert judge("b", [line(0, 0.3), line(1, 0.2)]) is not None
    assert judge("c", [line(0, None), line(1, None)]) is not None
    upward = Hyperband("val/wer", (1,), eta=2, lower_is_better=False)
    upward("a", [line(0, 0.9)])
    assert upward("b", [line(0, 0.2)]) == "val/wer 0.2 after 1 evaluations, where the best 1/2 of 2 runs had 0.9"


def test_a_stopped_run_ends_frees_its_slot_and_is_not_gone_on_with(tmp_path: Path) -> None:
    def run(name: str, scale: float) -> Run:
        folder = tmp_path / name
        command = (sys.executable, str(STUDY_RUN), "--output", str(folder), "--epochs=40", "--seconds=0.05")
        return Run(name, folder, (*command, f"--scale={scale}"), {}, "0" * 64)

    runs = [run("good", 1.0), run("bad", 5.0), run("next", 0.5)]
    judge = Hyperband("val/wer", (4,), eta=2)

    def board() -> ProgressBoard:
        return ProgressBoard(Console(file=io.StringIO(), width=200))

    execute(runs, [Slot({}), Slot({})], board(), commit=None, judge=judge)
    results = [read_result(one.folder) for one in runs]
    assert [(result or {})["status"] for result in results] == ["finished", "stopped", "finished"]
    assert str((results[1] or {})["reason"]).startswith("stopped early: val/wer")
    lines = (tmp_path / "bad" / "metrics.jsonl").read_text().splitlines()
    assert 4 <= len(lines) < 40
    execute(runs, [Slot({})], board(), commit=None, judge=Hyperband("val/wer", (4,), eta=2))
    assert (tmp_path / "bad" / "metrics.jsonl").read_text().splitlines() == lines
    assert read_result(tmp_path / "bad") == results[1]
