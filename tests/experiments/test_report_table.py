"""The tidy table and what is said about it: columns, order, intervals, the choice on dev, failures."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report import findings
from experiments.report.intervals import by_key, spread
from experiments.report.table import COLUMNS, find_folders, look_up, read_row, to_csv
from tests.experiments.synthetic import study_rows, write_run

NAMED_IN_THE_ISSUE = [
    "num_layers", "hidden_size", "seed", "status", "wer", "errors", "words", "peak_memory_bytes", "saved_bytes",
    "audio_seconds_per_second",
]  # fmt: skip


def test_the_table_has_a_row_a_run_and_every_promised_column(tmp_path: Path) -> None:
    write_run(tmp_path, 4, 0)
    write_run(tmp_path, 8, 1, status="diverged", reason="loss 99 above twice its first-100-step mean 40")
    rows = list(csv.DictReader(io.StringIO(to_csv(study_rows(tmp_path)))))
    assert set(NAMED_IN_THE_ISSUE) <= set(rows[0])
    assert [(row["num_layers"], row["seed"], row["status"]) for row in rows] == [
        ("4", "0", "finished"),
        ("8", "1", "diverged"),
    ]
    assert int(rows[0]["errors"]) / int(rows[0]["words"]) == float(rows[0]["wer"])
    assert rows[1]["wer"] == rows[1]["errors"] == ""
    assert rows[1]["reason"].startswith("loss 99")
    assert rows[0]["folder"].startswith("runs/")


def test_a_sweep_adds_the_keys_it_varies(tmp_path: Path) -> None:
    folder = write_run(tmp_path, 4, 0)
    row = read_row(folder, tmp_path, {"epochs_asked": "trainer.max_epochs"})
    assert row is not None
    assert row["epochs_asked"] == 20
    header = to_csv([row], ["epochs_asked", "seed"]).splitlines()[0].split(",")
    assert header == [*COLUMNS, "epochs_asked"]


def test_a_folder_without_results_and_half_a_result_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no result\.json"):
        find_folders(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        find_folders(tmp_path / "absent")
    folder = write_run(tmp_path, 4, 0)
    (folder / "result.json").write_text('{"status"')
    with pytest.raises(ValueError, match=r"result\.json is not a run's result .*delete it"):
        read_row(folder, tmp_path)
    assert read_row(tmp_path, tmp_path) is None


def test_look_up_finds_nothing_where_there_is_nothing() -> None:
    assert look_up({"model": {"num_layers": 3}}, "model.num_layers") == 3
    assert look_up({"model": {"num_layers": 3}}, "model.num_layers.deeper") is None
    assert look_up({}, "model") is None


def test_an_interval_needs_three_seeds_and_is_students() -> None:
    assert spread([1.0, 2.0]).low is None
    three = spread([1.0, 2.0, 3.0])
    assert three.mean == 2.0
    assert three.low is not None
    assert math.isclose(three.mean - three.low, 4.303 / math.sqrt(3))
    with pytest.raises(ValueError, match="no values"):
        spread([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=60))
def test_an_interval_holds_its_mean_and_shifts_with_the_values(values: list[float]) -> None:
    one, moved = spread(values), spread([value + 10.0 for value in values])
    assert one.low is not None
    assert one.high is not None
    assert one.low <= one.mean <= one.high
    assert math.isclose(moved.mean, one.mean + 10.0, abs_tol=1e-6)


def test_groups_count_only_runs_that_finished(tmp_path: Path) -> None:
    write_run(tmp_path, 4, 0)
    write_run(tmp_path, 4, 1, status="failed", reason="killed by SIGKILL 3 times (out of memory?)")
    write_run(tmp_path, 88, 0, status="diverged", reason="5 non-finite steps")
    found = findings.groups(study_rows(tmp_path), ["num_layers"])
    assert [(one.values["num_layers"], one.runs, one.finished) for one in found] == [(4, 2, 1), (88, 1, 0)]
    assert found[1].wer is None
    assert findings.summary_cells(found[1])[:4] == ["88", "0 of 1", "–", "–"]
    assert findings.status_sentence(study_rows(tmp_path)) == "3 runs: 1 finished, 1 diverged, 1 failed"


def test_the_best_depth_is_chosen_on_dev_not_on_test(tmp_path: Path) -> None:
    for depth, dev, test in ((4, 0.10, 0.02), (8, 0.05, 0.30)):
        folder = write_run(tmp_path, depth, 0)
        result = json.loads((folder / "result.json").read_text())
        result |= {"val_wer": dev, "wer": test}
        (folder / "result.json").write_text(json.dumps(result))
    best = findings.best(findings.groups(study_rows(tmp_path), ["num_layers"]))
    assert best is not None
    assert best.values == {"num_layers": 8}
    assert findings.words(best) == "8 layers"


def test_by_key_leaves_out_what_is_missing() -> None:
    rows = [{"x": 1, "y": 2.0}, {"x": 1, "y": None}, {"x": 2, "y": None}]
    assert {key: one.count for key, one in by_key(rows, ["x"], "y").items()} == {(1,): 1}


def test_the_slope_is_bytes_a_layer(tmp_path: Path) -> None:
    for depth in (1, 4, 8):
        write_run(tmp_path, depth, 0)
    slope = findings.slope(study_rows(tmp_path), "num_layers", "saved_bytes")
    assert slope is not None
    assert math.isclose(slope, 1_400_000)
    assert findings.slope(study_rows(tmp_path)[:1], "num_layers", "saved_bytes") is None


@pytest.mark.parametrize(
    ("count", "text"), [(None, "–"), (5_500_000, "5.25 MiB"), (157 * 2**20, "157 MiB"), (3 * 2**29, "1.50 GiB")]
)
def test_bytes_read_in_three_figures(count: int | None, text: str) -> None:
    assert findings.bytes_words(count) == text


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0"),
        (90, "90"),
        (999, "999"),
        (3210, "3.21 k"),
        (41_000, "41.0 k"),
        (999_999, "1.00 M"),
        (234_300_000, "234 M"),
        (2.5e9, "2.50 G"),
    ],
)
def test_no_count_reads_as_nothing(count: float, words: str) -> None:
    assert findings.count_words(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.04 s"), (1.4, "1.4 s"), (59.9, "59.9 s"), (60, "1.0 min"), (5400, "90.0 min")],
)
def test_short_times_are_in_seconds(seconds: float, words: str) -> None:
    assert findings.time_words(seconds) == words
