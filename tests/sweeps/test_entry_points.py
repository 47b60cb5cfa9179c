"""What every command shares: a reader that goes away, a package that is not installed."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from data.extras import EXTRAS

ROOT = Path(__file__).parents[2]
SWEEP = str(ROOT / "sweeps" / "skip_span.yaml")
BAYES = str(ROOT / "sweeps" / "recipe_bayes.yaml")
READER_GONE = (141, -13)  # 128 + SIGPIPE, or ended by that signal itself: a shell says 141 of both
IMPORTED_AS = {"vl-convert-python": "vl_convert"}


@pytest.fixture
def folder(tmp_path: Path, synth_corpus: Path) -> Path:
    """What the commands below are given."""
    (tmp_path / "corpus").symlink_to(synth_corpus)
    lines = (synth_corpus / "train.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    row |= {"audio_filepath": str(synth_corpus / row["audio_filepath"])}
    (tmp_path / "one.jsonl").write_text(json.dumps(row))
    (tmp_path / "remote.jsonl").write_text(json.dumps(row | {"audio_filepath": "s3://bucket/x.wav"}))
    (tmp_path / "cuts.jsonl").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps({"config": {}, "config_hash": "a", "status": "finished"}))
    return tmp_path


def ended(
    module: str, command: str, folder: Path, *, hidden: tuple[str, ...] = (), reader: bool = True
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE COMMAND` in a process of its own, where `hidden` packages cannot be imported."""
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({hidden!r})); sys.argv[1:] = {command.split()!r}; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    read, write = os.pipe()
    if not reader:
        os.close(read)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env=os.environ | {"WANDB_MODE": "disabled", "HOME": str(folder)},
        stdout=subprocess.PIPE if reader else write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=250,
    )
    os.close(write)
    if reader:
        os.close(read)
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("data", "--help"),
        ("data", "validate {0}/one.jsonl"),
        ("data", "vocabulary {0}/one.jsonl --output {0}/v.txt"),
        ("data", "index {0}/one.jsonl --output {0}/i.arrow"),
        ("data", "import nemo {0}/one.jsonl {0}/imported"),
        ("data", "synth {0}/spoken --hours 0.001 --speakers 3 --jobs 1"),
        ("experiments", "--help"),
        ("experiments", "fit --help"),
        ("experiments", "transcribe --help"),
        ("prnn_ext", "--help"),
        ("prnn_ext", "plan --hidden 8 --device cpu"),
        ("sweeps", "--help"),
        ("sweeps", "check " + SWEEP),
        ("sweeps", "table {0}/run"),
        ("sweeps", "report {0}/run"),
        ("sweeps", "panels " + SWEEP + " --save {0}/view.json"),
    ],
)
def test_a_reader_that_goes_away_ends_a_command_quietly(folder: Path, module: str, command: str) -> None:
    done = ended(module, command.format(folder), folder, reader=False)
    assert (done.stderr.splitlines()[-1:], done.returncode in READER_GONE) == ([], True), done.stderr[-2000:]


def test_every_package_of_the_extras_is_known() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {}
    for extra in set(extras) - {"test"}:
        for requirement in extras[extra]:
            name = requirement.split("[")[0].split(">")[0].split(";")[0].strip()
            wanted[IMPORTED_AS.get(name, name.replace("-", "_"))] = extra
    assert wanted == {package: extra for package, extra in EXTRAS.items() if package != "yaml"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "command", "package"),
    [
        ("data", "index {0}/one.jsonl --output {0}/i.arrow", "pyarrow"),
        ("data", "benchmark {0}/benchmark --rows 10", "pyarrow"),
        ("data", "vocabulary {0}/one.jsonl --output {0}/v.txt --units 8", "sentencepiece"),
        ("data", "synth {0}/spoken --hours 0.001 --speakers 3 --jobs 1", "espeakng_loader"),
        ("data", "import lhotse {0}/cuts.jsonl {0}/imported", "lhotse"),
        ("data", "index {0}/remote.jsonl --output {0}/i.arrow --shards {0}/s", "fsspec"),
        ("data", "validate {0}/one.jsonl --plots {0}/plots", "altair"),
        ("sweeps", "run " + BAYES + " --output {0}/bayes", "optuna"),
        ("sweeps", "table {0}/run --output {0}/t.parquet", "pyarrow"),
        ("sweeps", "dashboard {0}/run", "aiohttp"),
        ("sweeps", "panels " + SWEEP + " --save {0}/view.json", "wandb_workspaces"),
        ("sweeps", "agents us/project/id", "wandb"),
        ("experiments", "fit --config experiments/configs/fsdd.yaml", "jsonargparse"),
        ("experiments", "transcribe {0}/one.jsonl a.wav", "pytorch_lightning"),
    ],
)
def test_a_package_that_is_missing_is_one_sentence_that_names_its_extra(
    folder: Path, module: str, command: str, package: str
) -> None:
    done = ended(module, command.format(folder), folder, hidden=(package,))
    assert done.returncode == 2, done.stderr[-2000:]
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"{package} is not installed; say pip install '.[{EXTRAS[package]}]'" in told
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ["data", "experiments", "sweeps", "prnn_ext"])
def test_help_needs_no_extra(folder: Path, module: str) -> None:
    done = ended(module, "--help", folder, hidden=tuple(EXTRAS))
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"python -m {module}" in done.stdout


COMMANDS = {
    "data": ["synth {0}/n", "validate {0}/one.jsonl", "import nemo {0}/one.jsonl {0}/o", "benchmark {0}/b"],
    "experiments": [
        *(
            "fit --config experiments/configs/fsdd.yaml",
            "validate --config {0}/c.yaml",
            "transcribe {0}/one.jsonl a.wav",
        ),
        *(f"{name} --output {{0}}/o" for name in ("depth", "throughput", "memory", "whole-step", "stability")),
        *(f"{name} --output {{0}}/o" for name in ("batch-size", "batch-statistics", "scaling", "plan")),
    ],
    "sweeps": [
        *(f"check {SWEEP}", f"run {SWEEP} --output {{0}}/o", f"slurm {SWEEP} --output {{0}}/o", "table {0}/run"),
        *("report {0}/run", "dashboard {0}/run", "agents us/project/id", f"panels {SWEEP} --save {{0}}/v.json"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("module", "command"), [(module, one) for module in COMMANDS for one in COMMANDS[module]])
def test_no_command_ends_in_a_traceback_without_the_extras(folder: Path, module: str, command: str) -> None:
    done = ended(module, command.format(folder), folder, hidden=tuple(EXTRAS))
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "is not installed; say pip install '.[" in done.stderr
