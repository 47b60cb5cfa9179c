"""The batch-size study: its grid, samples to a loss, tuning, the trade-off's fit, and a whole study on digits."""

import argparse
import csv
import io
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from experiments.batch_size import command as batch_size
from experiments.batch_size.sample_efficiency import (
    Trained,
    Tuned,
    critical_batch,
    reachable_target,
    row,
    steps_to,
    tune,
)

CARD = Path(__file__).parents[2] / "experiments" / "configs" / "batch_size.yaml"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    batch_size.add_arguments(parser)
    return parser.parse_args(["--config", "card.yaml", "--output", "runs/study", *arguments])


def trained(size: int, rate: float, *losses: float, seed: int = 0, status: str = "finished") -> Trained:
    """A run validated every 1,000 samples."""
    curve = tuple((1000 * (i + 1) / size, loss) for i, loss in enumerate(losses))
    return Trained(size, rate, seed, status, None, curve, 0.5, f"runs/{size}-{rate}-{seed}")


def test_the_grid_is_sizes_by_rates_by_seeds() -> None:
    options = parsed("--batch-sizes=8,16", "--learning-rates=1e-3,2e-3", "--seeds=0,1", "--per-device-batch=8")
    points = batch_size.grid(options)
    assert len(points) == 8
    assert points[0].name == "batch-8_rate-0.001_seed-0"
    assert points[-1].options(8) == [
        "--data.global_batch_size=16",
        "--data.per_device_batch_size=8",
        "--model.recipe.learning_rate=0.002",
        "--seed_everything=1",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--batch-sizes=8,12",), "--batch-sizes has 12, which is no multiple of the per-device batch of 8"),
        (("--noise-group-size=1",), "a group needs at least 2 micro-batches"),
        (("--noise-groups=-1",), "--noise-groups is -1"),
        (("--batch-sizes=8,8",), "names a point twice"),
        (("--per-device-batch=0",), "are at least 1"),
    ],
)
def test_a_grid_that_does_not_fit_is_told(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        batch_size.grid(parsed(*arguments))


@pytest.mark.parametrize("text", ["1e-3,fast", "0", "-1e-3", "inf", ""])
def test_a_learning_rate_is_a_number_above_zero(text: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=r"not a list of numbers|not above 0"):
        parsed(f"--learning-rates={text}")


def test_the_command_it_remembers_makes_the_same_study() -> None:
    options = parsed(
        "--batch-sizes=8,16", "--learning-rates=1e-3", "--target-loss=3.5", "--set", "data.root=my corpora"
    )
    said = shlex.split(batch_size.command_of(options))
    parser = argparse.ArgumentParser()
    batch_size.add_arguments(parser)
    assert vars(parser.parse_args(said[4:])) == vars(options)


def test_steps_lie_on_the_line_between_two_validations() -> None:
    curve = [(10, 8.0), (20, 4.0), (30, 5.0), (40, 1.0)]
    assert steps_to(curve, 6.0) == 15
    assert steps_to(curve, 4.0) == 20
    assert steps_to(curve, 2.0) == pytest.approx(37.5)
    assert steps_to(curve, 9.0) == 10
    assert steps_to(curve, 0.5) is None
    assert steps_to([], 1.0) is None


def test_the_target_is_what_every_size_reached_with_all_seeds() -> None:
    runs = [
        trained(4, 1e-3, 9, 2),
        trained(4, 1e-3, 9, 4, seed=1),
        trained(4, 2e-3, 9, 1, status="diverged"),
        trained(8, 1e-3, 9, 5),
        trained(8, 2e-3, 9, 3),
    ]
    assert reachable_target(runs) == 4
    with pytest.raises(ValueError, match=r"No run with a batch of 16 finished.*--target-loss"):
        reachable_target([*runs, trained(16, 1e-3, 9, status="failed")])


def test_the_rate_that_needs_the_fewest_samples_stands_for_its_size() -> None:
    runs = [
        trained(4, 1e-3, 9, 8, 3, 2),
        trained(4, 2e-3, 9, 3, 2.5, 2.5),
        trained(4, 4e-3, 9, 9, 9, 9),
        trained(8, 1e-3, 9, 9, 9, 9),
        trained(8, 2e-3, 9, 7, 6, 5),
        trained(8, 4e-3, 9, 6, 4, 3),
        trained(16, 1e-3, 9, 9, 9, 8),
    ]
    four, eight, sixteen = tune(runs, target=3)
    assert (four.learning_rate, four.samples_to_target, four.at_edge) == (2e-3, 2000, False)
    assert (eight.learning_rate, eight.samples_to_target, eight.at_edge) == (4e-3, 4000, True)
    assert eight.steps_to_target == 500
    assert (sixteen.samples_to_target, sixteen.lowest_loss) == (None, 8)
    assert not four.upper_bound
    assert tune(runs, target=9)[0].upper_bound
    assert [row(run, 3, [four, eight, sixteen])["best"] for run in runs] == [
        False,
        True,
        False,
        False,
        False,
        True,
        True,
    ]


def test_a_seed_that_fails_disqualifies_its_rate() -> None:
    runs = [
        trained(4, 1e-3, 9, 1),
        trained(4, 1e-3, 9, 1, seed=1, status="diverged"),
        trained(4, 2e-3, 9, 5),
        trained(4, 2e-3, 9, 7, seed=1),
    ]
    assert [(one.learning_rate, one.lowest_loss, one.seeds) for one in tune(runs, 5)] == [(2e-3, 6, 2)]
    assert tune(runs, 5)[0].samples_to_target is None


@given(st.floats(1e2, 1e6), st.floats(1, 1e4))
def test_the_trade_off_is_recovered(samples: float, critical: float) -> None:
    curve = [
        Tuned(size, 1e-3, False, 1, 1.0, None, samples * (1 + size / critical), None, None, False)
        for size in (4, 16, 64, 256)
    ]
    found = critical_batch(curve)
    assert found is not None
    assert found[0] == pytest.approx(samples, rel=1e-4)
    assert found[1] == pytest.approx(critical, rel=1e-3)


def test_samples_that_do_not_grow_have_no_critical_batch() -> None:
    flat = [Tuned(size, 1e-3, False, 1, 1.0, None, 1000.0 - size, None, None, False) for size in (4, 16, 64)]
    found = critical_batch(flat)
    assert found is not None
    assert found[1] == math.inf
    assert critical_batch(flat[:2]) is None


@pytest.mark.slow
def test_a_whole_study_keeps_what_it_has_and_measures_the_noise(tmp_path: Path, synth_corpus: Path) -> None:
    """The real card, made small by a second one."""
    small = tmp_path / "small.yaml"
    content = {
        "trainer": {"max_epochs": 2, "val_check_interval": 1.0},
        "model": {"num_layers": 1, "hidden_size": 16, "front_end": {"channels": 2}},
        "synth": {"output": None},
        "data": {
            "root": str(synth_corpus),
            "train_manifest": "train.jsonl",
            "val_manifest": "dev.jsonl",
            "test_manifest": "test.jsonl",
        },
        "wandb": {"mode": "disabled"},
    }
    small.write_text(yaml.safe_dump(content))
    root = tmp_path / "study"
    # A rate of 1e9 cannot end well: that run is recorded, and its size stands at the other rate.
    arguments = ["--batch-sizes=4,8", "--per-device-batch=4", "--learning-rates=4e-3,1e9"]
    command = [sys.executable, "-m", "experiments", "batch-size", f"--config={CARD}", f"--config={small}"]
    command += [f"--output={root}", *arguments]
    command += ["--noise-groups=2", "--noise-group-size=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads((root / "batch_size.json").read_text())
    assert [one["global_batch_size"] for one in record["curve"]] == [4, 8]
    assert {one["learning_rate"] for one in record["curve"]} == {4e-3}
    assert all(one["samples_to_target"] for one in record["curve"])
    assert [(one["small_batch"], one["big_batch"]) for one in record["noise_scale"]] == [(4, 8), (4, 8)]
    rows = list(csv.DictReader(io.StringIO((root / "table.csv").read_text())))
    assert len(rows) == 4
    for one in rows:
        if one["status"] == "finished":
            done_steps = json.loads((root / one["folder"] / "result.json").read_text())["steps"]
            assert int(one["steps"]) == done_steps, "the last validation comes after the last step"
    assert sum(one["best"] == "True" for one in rows) == 2
    assert all(one["reason"] for one in rows if one["status"] != "finished")
    assert "Gradient noise scale" in (root / "report.html").read_text()
    kept = {path: path.stat().st_mtime_ns for path in root.glob("runs/*/result.json")}
    again = subprocess.run([*command, "--reuse-commit"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in root.glob("runs/*/result.json")} == kept
    assert len(kept) == 4
    assert "starts" not in again.stdout
