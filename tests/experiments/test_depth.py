"""The depth study: its grid, what it refuses, the command it remembers; and whole studies on a spoken corpus."""

import argparse
import csv
import io
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from experiments.depth import command as depth
from experiments.report.figures import DEPTH
from experiments.report.terminal import summary_table
from tests.experiments.synthetic import study_rows, write_run
from tests.sweeps.small_card import small_card

TWO_EPOCHS = {"accelerator": "cpu", "max_epochs": 2}


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    depth.add_arguments(parser)
    return parser.parse_args(["--config", "card.yaml", "--output", "runs/study", *arguments])


def test_the_grid_is_depths_by_seeds() -> None:
    names = [point.name for point in depth.grid(parsed("--num-layers", "1,4", "--seeds", "0,7"))]
    assert names == ["layers-1_seed-0", "layers-1_seed-7", "layers-4_seed-0", "layers-4_seed-7"]
    assert len(depth.grid(parsed())) == 6


def test_a_width_for_each_depth_keeps_the_parameters_constant() -> None:
    points = depth.grid(parsed("--num-layers", "8,24", "--hidden-size", "1632,928", "--seeds", "0"))
    assert [(point.num_layers, point.hidden_size) for point in points] == [(8, 1632), (24, 928)]
    assert points[0].options() == ["--model.num_layers=8", "--seed_everything=0", "--model.hidden_size=1632"]
    same = depth.grid(parsed("--num-layers", "8,24", "--hidden-size", "64", "--seeds", "0"))
    assert [point.hidden_size for point in same] == [64, 64]


@pytest.mark.parametrize(
    ("key", "count", "first"),
    [
        ("constant-width", 6, (8, 1152, None)),
        ("constant-parameters", 6, (8, 1632, None)),
        ("skip-span", 9, (48, 1152, 0)),
    ],
)
def test_the_papers_tables_are_grids(key: str, count: int, first: tuple[int, int, int | None]) -> None:
    points = depth.grid(parsed("--paper", key, "--seeds", "0"))
    assert len(points) == count
    assert (points[0].num_layers, points[0].hidden_size, points[0].skip_span) == first
    assert "--model.skip_span=null" in points[0].options() or key != "skip-span"
    assert depth.axis_of(parsed("--paper", key)).column == ("skip_span" if key == "skip-span" else "num_layers")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--num-layers", "1,4", "--hidden-size", "1,2,3"), "3 widths for 2 depths; give one, or one for each"),
        (("--seeds", "0,0"), "names a point twice"),
        (("--paper", "skip-span", "--num-layers", "4"), "brings its own depths"),
    ],
)
def test_lists_that_do_not_fit_are_told(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        depth.grid(parsed(*arguments))


@pytest.mark.parametrize("text", ["1,four", "", "-1", "1;4", "0,4"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=r"whole numbers|number below 0|number below 1"):
        parsed(f"--num-layers={text}")


def test_an_output_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    options = parsed()
    options.output = tmp_path / "file"
    assert depth.run(options) == 2
    assert capsys.readouterr().err == f"error: --output {tmp_path / 'file'} is a file; name a folder.\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_setting_needs_a_value() -> None:
    with pytest.raises(ValueError, match=r"--set trainer\.max_epochs has no value; write --set KEY=VALUE"):
        depth.fit_arguments(parsed("--set", "trainer.max_epochs"))
    assert depth.fit_arguments(parsed("--set", "a.b=c d")) == ["--config=card.yaml", "--a.b=c d"]


def test_the_command_it_remembers_makes_the_same_study() -> None:
    options = parsed("--num-layers", "1,4", "--hidden-size", "8", "--set", "data.root=my corpora", "--seeds", "3,4")
    said = shlex.split(depth.command(options))
    assert said[:4] == ["python", "-m", "experiments", "depth"]
    parser = argparse.ArgumentParser()
    depth.add_arguments(parser)
    assert vars(parser.parse_args(said[4:])) == vars(options)


def test_a_changed_config_gets_its_own_folder(tmp_path: Path) -> None:
    point = depth.Point(4, None, None, 0)
    config = {"model": {"num_layers": 4}, "seed_everything": 0}
    one = depth.study_run(tmp_path, point, [], config)
    other = depth.study_run(tmp_path, point, [], {**config, "trainer": {"max_epochs": 3}})
    assert one.folder.parent == other.folder.parent == tmp_path / "runs"
    assert one.folder.name.startswith("layers-4_seed-0-")
    assert one.folder != other.folder


def test_the_terminal_tells_means_the_best_and_what_failed(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, 1, seed)
        write_run(tmp_path, 8, seed)
    write_run(tmp_path, 88, 0, status="diverged", reason="5 non-finite steps")
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(summary_table(study_rows(tmp_path), DEPTH, tmp_path))
    said = console.export_text()
    assert "5 runs: 4 finished, 1 diverged" in said
    assert "best on dev: 8 layers; test WER" in said
    assert "layers-88_units-64_seed-0 diverged: 5 non-finite steps" in said


def study(card_path: Path, root: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "experiments", "depth", f"--config={card_path}", f"--output={root}", *more]


@pytest.mark.slow
def test_every_point_is_parsed_before_the_first_run_starts(tmp_path: Path, synth_corpus: Path) -> None:
    command = study(
        small_card(tmp_path, synth_corpus, trainer=TWO_EPOCHS),
        tmp_path / "study",
        "--num-layers=1,2",
        "--set=model.no_such_key=3",
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: layers-1_seed-0: ")
    assert "no_such_key" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_whole_study_with_a_failure_survives_kill_9_and_repeats_nothing(tmp_path: Path, synth_corpus: Path) -> None:
    root = tmp_path / "study"
    # A hundred million units do not fit into memory: that run fails, the others go on.
    command = study(
        small_card(tmp_path, synth_corpus, trainer=TWO_EPOCHS),
        root,
        "--num-layers=1,2,3",
        "--hidden-size=16,16,100000000",
        "--seeds=0",
        "--reuse-commit",  # whoever commits while this runs must not fail it
    )
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(root.glob("runs/layers-*/checkpoints/last.ckpt")):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO((root / "table.csv").read_text())))
    assert [row["status"] for row in rows] == ["finished", "finished", "failed"]
    assert rows[2]["reason"]
    assert "3 runs: 2 finished, 1 failed" in done.stdout
    for row in rows[:2]:
        lines = [json.loads(line) for line in (root / row["folder"] / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines if "val/wer" in line] == [0, 1]
        assert int(row["peak_memory_bytes"]) > int(row["saved_bytes"]) > 0
    kept = [(root / row["folder"] / "result.json").stat().st_mtime_ns for row in rows[:2]]
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert again.returncode == 0
    assert again.stdout.count("kept from before") == 2
    assert [(root / row["folder"] / "result.json").stat().st_mtime_ns for row in rows[:2]] == kept
    assert (root / "report.html").stat().st_size > 500_000
    assert json.loads((root / "depth.json").read_text())["experiment"] == "depth"
