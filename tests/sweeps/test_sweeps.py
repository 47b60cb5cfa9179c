"""The sweeps command through its own door: check, table and report on made-up runs; whole sweeps on a spoken corpus."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from experiments.many_runs.progress_board import ProgressBoard
from experiments.many_runs.runner import execute
from experiments.many_runs.slots import machine_slots
from experiments.run.result import read_result
from sweeps.__main__ import main
from sweeps.columns import column_names, varied_keys
from sweeps.planning import plan_points
from sweeps.study import SWEEP_NAME, gather
from sweeps.sweep_file import read_sweep
from tests.experiments.synthetic import write_run

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))
ROOT = Path(__file__).parents[2]
# Lightning 2.6 still calls jsonargparse's add_instantiator.
LIGHTNINGS_OWN = "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"


def remembered(root: Path, points: list[dict[str, Any]]) -> None:
    columns = column_names(varied_keys(points))
    told = {
        "name": "Activations",
        "description": "Which?",
        "command": "python -m sweeps run a.yaml",
        "columns": columns,
    }
    (root / SWEEP_NAME).write_text(json.dumps(told))


def test_table_gathers_every_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for depth in (4, 8):
        write_run(tmp_path / "one", depth, 0)
    write_run(tmp_path / "two", 88, 0, status="diverged", reason="5 non-finite steps")
    assert main(["table", str(tmp_path)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["num_layers"] for row in rows] == ["4", "8", "88"]
    assert main(["table", str(tmp_path), "--output", str(tmp_path / "all.csv")]) == 0
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 4


def test_table_writes_parquet_with_types(tmp_path: Path) -> None:
    from pyarrow import parquet

    for depth in (4, 8):
        write_run(tmp_path, depth, 0)
    assert main(["table", str(tmp_path), "--output", str(tmp_path / "all.parquet")]) == 0
    found = parquet.read_table(tmp_path / "all.parquet", columns=["num_layers", "wer", "status"]).to_pylist()
    assert [(row["num_layers"], type(row["wer"]), row["status"]) for row in found] == [
        (4, float, "finished"),
        (8, float, "finished"),
    ]


def test_report_shows_what_the_sweep_varies(tmp_path: Path) -> None:
    for seed, activation in enumerate(("relu", "tanh")):
        folder = write_run(tmp_path, 4, seed)
        result = json.loads((folder / "result.json").read_text())
        result["config"]["model"]["activation"] = activation
        (folder / "result.json").write_text(json.dumps(result))
    remembered(tmp_path, [{"model.activation": "relu"}, {"model.activation": "tanh"}])
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "<title>Activations</title>" in page
    assert "Word error rate by activation" in page
    assert "activation" in (tmp_path / "table.csv").read_text().splitlines()[0]
    assert [row["activation"] for row in gather(tmp_path)[0]] == ["relu", "tanh"]


@pytest.mark.parametrize("command", ["table", "report"])
def test_folders_without_whole_results_are_one_sentence(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert "holds no result.json" in capsys.readouterr().err
    folder = write_run(tmp_path, 4, 0)
    (folder / "result.json").write_text('{"status": "fini')
    assert main([command, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1


def test_an_unknown_ending_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, 4, 0)
    assert main(["table", str(tmp_path), "--output", str(tmp_path / "all.xlsx")]) == 2
    assert "neither .csv nor .parquet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "COMMAND must be given; say python -m sweeps --help"),
        ("chek a.yaml", "COMMAND is chek; choose from check, run, slurm"),
        ("check", "FILE must be given; say python -m sweeps check --help"),
        ("check a.yaml", "a.yaml is no file; name a sweep file"),
        ("check a.yaml --sett x=1", "--sett is no option; did you mean --set?"),
        ("check a.yaml --se x=1", "--se is no option"),
        ("run a.yaml", "--output must be given; say python -m sweeps run --help"),
        ("run a.yaml --output d --gpus 0", "--gpus: '0' is not a whole number of 1 or more"),
        ("run a.yaml --output d --limit 0", "--limit: '0' is not a whole number of 1 or more"),
        ("run a.yaml --output d --jobs many", "--jobs: 'many' is neither auto nor a whole number"),
        ("run a.yaml --output d --seed x", "--seed is x; give a whole number"),
        ("slurm a.yaml --output d --nodes -1", "--nodes: '-1' is not a whole number of 1 or more"),
        ("slurm a.yaml --output d --gpus 1.5", "--gpus: '1.5' is not a whole number of 1 or more"),
        ("table", "table needs a folder with runs"),
        ("report d --outptu x", "--outptu is no option; did you mean --output?"),
        ("dashboard d --port 99999", "--port: '99999' is not a port; give a whole number from 0 to 65535"),
        ("agents us/p/id --count 0", "--count: '0' is not a whole number of 1 or more"),
        ("panels {0}", "panels needs --project, where the view is stored, or --save FILE.json"),
        ("panels {0} --project", "--project has no value; give one"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.format(SWEEPS[0]).split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1


@pytest.mark.filterwarnings(LIGHTNINGS_OWN)
def test_a_file_that_is_wrong_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("method: grid")
    good = bayes(tmp_path / "good.yaml", **{"model.recipe.learning_rate": {"min": 0.001, "max": 0.01}})
    assert main(["check", str(tmp_path / "bad.yaml"), str(good)]) == 2
    said = capsys.readouterr()
    assert "bad.yaml: parameters must be a mapping" in said.err
    assert "good.yaml: bayes over 1 parameters, 2 points with every value and every bound parse" in said.out


@pytest.mark.filterwarnings(LIGHTNINGS_OWN)
@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"model.no_such_key": {"min": 0.0, "max": 1.0}}, "no_such_key"),
        ({"model.num_layers": {"min": 1, "max": 4}, "model.activation": {"values": ["relu", "rellu"]}}, "rellu"),
        ({"model.num_layers": {"min": 0.5, "max": 4.0}}, "0.5"),
    ],
)
def test_what_a_bayes_sweep_may_propose_is_parsed_too(
    tmp_path: Path, parameters: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(bayes(tmp_path / "sweep.yaml", **parameters))]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def bayes(path: Path, **parameters: Any) -> Path:
    content = {
        "method": "bayes", "metric": {"name": "val/wer"}, "parameters": parameters,
        "command": ["-m", "experiments", "fit", "--config", "${args_json}"],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings(LIGHTNINGS_OWN)
def test_the_first_point_of_every_sweep_file_trains(tmp_path: Path, synth_corpus: Path) -> None:
    tiny = [
        "trainer.accelerator=cpu", "trainer.strategy=auto", "trainer.precision=32-true", "trainer.max_epochs=1",
        "trainer.limit_train_batches=1", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1",
        "model.num_layers=2", "model.hidden_size=8", "model.features.kind=log_mel", "model.front_end.channels=2",
        "synth.output=null", f"data.root={synth_corpus}", "data.train_manifest=train.jsonl",
        "data.val_manifest=dev.jsonl", "data.test_manifest=test.jsonl", "data.global_batch_size=4",
        "data.per_device_batch_size=4", "data.num_workers=0", "wandb.mode=disabled",
    ]  # fmt: skip
    runs = []
    for path in SWEEPS:
        sweep = read_sweep(path)
        point = {
            one.key: one.form.get("value", one.form.get("values", [one.form.get("min")])) for one in sweep.parameters
        }
        point = {key: value[0] if isinstance(value, list) else value for key, value in point.items()}
        runs += [one.run(tmp_path / path.stem) for one in plan_points(sweep, [point], list(point), tiny)]
    assert len(runs) == len(SWEEPS) > 5
    execute(runs, machine_slots(None, "cpu"), ProgressBoard(Console(file=io.StringIO())), commit=None)
    ended = {run.folder.parents[1].name: read_result(run.folder) for run in runs}
    assert {name: (one or {}).get("reason") for name, one in ended.items()} == dict.fromkeys(ended)
    assert {(one or {}).get("status") for one in ended.values()} == {"finished"}


def seconds_to_check_all(capsys: pytest.CaptureFixture[str]) -> float:
    """Of processor time, of this process and of those that it shares the points with."""
    began = os.times()
    assert main(["check", *map(str, SWEEPS)]) == 0
    said = capsys.readouterr().out
    assert sum(int(line.split(": ")[1].split()[0]) for line in said.splitlines() if "all parse" in line) > 200
    return sum(now - then for now, then in zip(os.times()[:4], began[:4], strict=True))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.filterwarnings(LIGHTNINGS_OWN)
def test_all_sweep_files_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    # Where neighbours halve a processor's speed, 28 to 39 s were seen (2026-12-01).
    assert seconds_to_check_all(capsys) < 60


@pytest.mark.idle
@pytest.mark.slow
@pytest.mark.filterwarnings(LIGHTNINGS_OWN)
def test_all_sweep_files_are_checked_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert seconds_to_check_all(capsys) < 20
