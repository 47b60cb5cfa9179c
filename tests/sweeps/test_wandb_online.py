"""W&B's pages and runs, against a stand-in of its server: what is stored there, and what is read from it.

What the stand-in covers and does not is told in `wandb_stand_in.py`: that W&B draws a view is not tested.
"""

import csv
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.run.wandb_log import ID_NAME
from sweeps import panels
from sweeps.__main__ import main
from sweeps.sweep_file import read_sweep
from tests.experiments.synthetic import write_run
from tests.sweeps.test_sweeps import SWEEPS
from tests.sweeps.wandb_stand_in import StandIn, wandb_run

# wandb-workspaces still writes its validators in pydantic's older style.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "sweeps" / "depth_constant_parameters.yaml"


@pytest.fixture
def server() -> Iterator[StandIn]:
    one = StandIn()
    threading.Thread(target=one.serve_forever, daemon=True).start()
    yield one
    one.shutdown()
    one.server_close()
    assert one.unknown == [], "our commands asked for what the stand-in does not cover"


def sweeps(folder: Path, *arguments: str, url: str = "", key: str = "0" * 40) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: wandb remembers accounts for the life of one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(folder), "WANDB_BASE_URL": url, "WANDB_API_KEY": key, "WANDB_ERROR_REPORTING": "false"}
    command = [sys.executable, "-m", "sweeps", *arguments]
    given = {name: value for name, value in environment.items() if value}
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False, timeout=100)


def told(path: Path, sweep_id: str | None = None) -> dict[str, Any]:
    return panels.specification(panels.view(read_sweep(path), "us", "project", sweep_id))


def drawn(specification: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    sections = specification["spec"]["section"]["panelBankConfig"]["sections"]
    return [(panel["viewType"], panel["config"]) for section in sections for panel in section["panels"]]


def test_the_view_shows_what_the_page_shows() -> None:
    view = told(SWEEP, "abc")
    charts = drawn(view)
    scatters = {(one["xAxis"], one["yAxis"]) for kind, one in charts if kind == "Scatter Plot"}
    depth = "config:model.value.num_layers"
    assert {
        (depth, "summary:test/wer"),
        (depth, "summary:val/wer"),
        (depth, "summary:perf/peak_memory_gib"),
        (depth, "summary:perf/audio_seconds_per_second"),
        ("summary:perf/peak_memory_gib", "summary:test/wer"),
    } == scatters
    curves = {tuple(one["metrics"]): one["xAxis"] for kind, one in charts if kind == "Run History Line Plot"}
    assert curves == dict.fromkeys([("train/loss",), ("val/loss",), ("val/wer",)], "trainer/global_step")
    [parallel] = [one for kind, one in charts if kind == "Parallel Coordinates Plot"]
    lines = [one["accessor"] for one in parallel["columns"]]
    assert lines[:3] == [depth, "config:model.value.hidden_size", "config:seed_everything.value"]
    [runs] = view["spec"]["section"]["runSets"]
    assert runs["runFeed"]["columnOrder"][:4] == [
        "run:displayName",
        "run:state",
        depth,
        "config:model.value.hidden_size",
    ]
    assert [(one["key"]["name"], one["value"]) for one in runs["filters"]["filters"]] == [("sweep", "abc")]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_file_has_a_view_over_all_that_it_varies(path: Path) -> None:
    sweep = read_sweep(path)
    [parallel] = [one for kind, one in drawn(told(path)) if kind == "Parallel Coordinates Plot"]
    lines = {one["accessor"] for one in parallel["columns"]}
    varied = panels.varied(sweep)
    assert varied.key in varied.columns.values()
    assert {f"config:{key.replace('.', '.value.', 1)}" for key in varied.columns.values()} < lines
    constant = {one.key for one in sweep.parameters if one.distribution == "constant"}
    assert not constant & set(varied.columns.values())


@pytest.mark.slow
def test_a_view_is_written_without_an_account(tmp_path: Path) -> None:
    path = tmp_path / "view.json"
    done = sweeps(tmp_path, "panels", str(SWEEP), f"--save={path}", key="")
    assert (done.returncode, done.stdout) == (0, f"{path}: 10 panels\n"), done.stderr
    assert json.loads(path.read_text())["displayName"] == "Depth at constant parameters"


@pytest.mark.slow
def test_a_view_is_stored_in_the_project(tmp_path: Path, server: StandIn) -> None:
    done = sweeps(tmp_path, "panels", str(SWEEP), "--project=project", "--sweep=abc", url=server.url)
    assert done.returncode == 0, done.stderr
    [stored] = server.views
    assert (stored["entityName"], stored["projectName"], stored["type"]) == ("us", "project", "project-view")
    assert drawn({"spec": json.loads(stored["spec"])}) == drawn(told(SWEEP, "abc"))
    assert done.stdout.startswith(f"{server.url}/us/project?nw=")


ONLINE = [
    ["agents", "us/project/s", "--jobs=2"],
    ["panels", str(SWEEP), "--project=project"],
    ["table", "{runs}", "--wandb=us/project", "--output={table}"],
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ONLINE, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize(
    ("key", "url", "sentence"),
    [
        ("", "http://127.0.0.1:9", "There is no W&B account on this machine"),
        ("0" * 40, "http://127.0.0.1:9", "check the name, the account (wandb login) and the network"),
    ],
    ids=["no account", "no network"],
)
def test_without_account_or_network_one_sentence_and_nothing_written(
    tmp_path: Path, arguments: list[str], key: str, url: str, sentence: str
) -> None:
    write_run(tmp_path, 4, 0)
    names = {"runs": tmp_path, "table": tmp_path / "all.csv"}
    done = sweeps(tmp_path, *(one.format(**names) for one in arguments), key=key, url=url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "all.csv").exists()


def config(num_layers: int, seed: int) -> dict[str, Any]:
    return {"model": {"num_layers": num_layers, "hidden_size": 64, "skip_span": None}, "seed_everything": seed}


def ended(config_hash: str, wer: float, **more: Any) -> dict[str, Any]:
    result = {"status": "finished", "wer": wer, "config_hash": config_hash, "seed": 0, "errors": 5, "words": 100}
    return {"val/wer": 0.2, "_step": 9} | {f"result/{key}": value for key, value in (result | more).items()}


def table(folder: Path, server: StandIn, *arguments: str) -> list[dict[str, str]]:
    path = folder / "all.csv"
    done = sweeps(folder, "table", *arguments, f"--output={path}", url=server.url)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.slow
def test_runs_here_and_there_are_one_table(tmp_path: Path, server: StandIn) -> None:
    by_hash, by_id = write_run(tmp_path, 4, 0), write_run(tmp_path, 8, 0)
    (by_id / ID_NAME).write_text("there8\n")
    known = json.loads((by_hash / "result.json").read_text())["config_hash"]
    server.runs = [
        wandb_run("there4", "finished", config(4, 0), ended(known, 0.5)),
        wandb_run("there8", "running", config(8, 0), {"val/wer": 0.9}),
        wandb_run("old", "crashed", config(16, 0), ended("a" * 64, 0.4, status="stopped", reason="SIGTERM")),
        wandb_run("new", "finished", config(16, 0), ended("a" * 64, 0.05)),
        wandb_run("going", "running", config(24, 1), {"val/wer": 0.3, "train/loss": 2.5, "trainer/global_step": 70}),
        wandb_run("other", "failed", config(2, 0), {"perf/peak_memory_gib": 0.5}, sweep="another"),
    ]
    rows = {row["name"]: row for row in table(tmp_path, server, str(tmp_path), "--wandb=us/project/s")}
    assert list(rows) == [by_hash.name, by_id.name, "run new", "run going"]
    assert [row["source"] for row in rows.values()] == ["local", "local", "wandb", "wandb"]
    new, going = rows["run new"], rows["run going"]
    assert (new["num_layers"], new["skip_span"], new["wer"], new["status"]) == ("16", "0", "0.05", "finished")
    assert new["folder"] == f"{server.url}/us/project/runs/new"
    assert (going["status"], going["seed"], going["wer"], going["loss"], going["steps"]) == (
        "running", "1", "", "2.5", "70",
    )  # fmt: skip
    alone = {row["name"]: row for row in table(tmp_path, server, "--wandb=us/project")}
    assert set(alone) == {"run there4", "run there8", "run new", "run going", "run other"}
    assert (alone["run other"]["status"], alone["run other"]["peak_memory_bytes"]) == ("failed", str(2**29))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table"], "table needs a folder with runs, or --wandb ENTITY/PROJECT"),
        (["table", "--wandb=project"], "--wandb project names no runs; write ENTITY/PROJECT"),
        (["panels", "none.yaml", "--project=p"], "none.yaml is no file"),
    ],
)
def test_a_mistake_gets_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


@pytest.mark.slow
def test_a_project_that_is_not_there_is_named(tmp_path: Path, server: StandIn) -> None:
    done = sweeps(tmp_path, "table", "--wandb=us/none", url=server.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--wandb us/none: W&B knows no such project" in done.stderr
    assert len(done.stderr.splitlines()) == 1
