"""The local search: stays in range, gets better, goes on after a kill, and survives runs without a value."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.bayes import distribution, metric_column, search
from sweeps.parameters import read_parameters
from sweeps.study import gather
from sweeps.sweep_file import Point, Sweep, read_sweep
from tests.sweeps.small_card import small_card

ROOT = Path(__file__).parents[2]


def a_sweep(folder: Path, **content: Any) -> Sweep:
    whole = {
        "method": "bayes",
        "run_cap": 24,
        "metric": {"name": "val/wer", "goal": "minimize"},
        "command": ["-m", "experiments", "fit", "${args}"],
        "parameters": {
            "rate": {"distribution": "log_uniform_values", "min": 1.0e-5, "max": 1.0e-1},
            "kind": {"values": [{"a": 1}, {"a": 2}]},
            "depth": {"value": 8},
        },
        **content,
    }
    path = folder / "bayes.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in whole.items() if value is not None}))
    return read_sweep(path)


def wer(point: Point) -> float:
    """Best at a rate of 1e-3 and the second kind."""
    return 0.1 + 0.1 * abs(math.log10(point["rate"]) + 3) + (0.2 if point["kind"] == {"a": 1} else 0.0)


def test_it_stays_in_range_and_gets_better_than_its_first_draws(tmp_path: Path) -> None:
    told: list[int] = []

    def train(points: list[Point]) -> list[float | None]:
        told.append(len(points))
        return [wer(point) for point in points]

    points = search(a_sweep(tmp_path), [], train, at_once=4)
    assert told == [4, 8, 12, 16, 20, 24]
    assert all(1e-5 <= point["rate"] <= 1e-1 and point["depth"] == 8 for point in points)
    assert min(map(wer, points[12:])) < min(map(wer, points[:8]))


def test_a_search_that_was_cut_short_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    seen: list[list[Point]] = []

    def train(points: list[Point]) -> list[float | None]:
        seen.append(list(points))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return [wer(point) for point in points]

    sweep = a_sweep(tmp_path, run_cap=9)
    with pytest.raises(KeyboardInterrupt):
        search(sweep, [], train, at_once=2)
    known = seen[-1]
    again = search(sweep, known, lambda points: [wer(point) for point in points], at_once=2)
    assert again[: len(known)] == known
    assert len(again) == 9


def test_runs_without_a_value_count_and_do_not_stop_it(tmp_path: Path) -> None:
    points = search(a_sweep(tmp_path, run_cap=6), [], lambda points: [None] * len(points), at_once=4)
    assert len(points) == 6
    known = search(a_sweep(tmp_path, run_cap=8), points, lambda points: [None] * len(points), at_once=4)
    assert len(known) == 8


def test_what_cannot_be_searched_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no end; give run_cap"):
        search(a_sweep(tmp_path, run_cap=None), [], lambda points: [], at_once=1)
    with pytest.raises(ValueError, match=r"'test/wer' cannot be searched on; it is one of val/wer, val/loss"):
        metric_column(a_sweep(tmp_path, metric={"name": "test/wer"}))
    [normal] = read_parameters({"a": {"distribution": "normal"}})
    with pytest.raises(ValueError, match="a is normal, which the local search does not know"):
        distribution(normal)


@pytest.mark.slow
def test_a_search_trains_through_its_own_door(tmp_path: Path, synth_corpus: Path) -> None:
    card = small_card(tmp_path, synth_corpus)
    parameters = {
        "model.num_layers": {"min": 1, "max": 3},
        "model.recipe.learning_rate": {"distribution": "log_uniform_values", "min": 1.0e-4, "max": 1.0e-2},
    }
    command = ["-m", "experiments", "fit", "--config", str(card), "--config", "${args_json}"]
    sweep = a_sweep(tmp_path, run_cap=3, command=command, parameters=parameters)
    said = [sys.executable, "-m", "sweeps", "run", str(sweep.path), f"--output={tmp_path / 'out'}", "--jobs=2"]
    said += ["--reuse-commit"]  # whoever commits while this runs must not fail it
    done = subprocess.run(said, capture_output=True, text=True, check=False, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows, columns = gather(tmp_path / "out")
    assert len(rows) == 3
    assert set(columns) == {"num_layers", "learning_rate"}
    again = subprocess.run(said, capture_output=True, text=True, check=False, cwd=ROOT, timeout=280)
    assert again.stdout.count("kept from before") == 3
