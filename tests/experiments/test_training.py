"""Training through the real entry point: mistakes in one sentence, every card one step, kill, stop, ranks."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from experiments.arguments import CONFIGS
from experiments.cli import main
from experiments.run.metrics_log import read_metrics
from experiments.run.result import SCHEMA_PATH
from models.gradient_norm import GradientNorm, NonFiniteGradientsError

ROOT = Path(__file__).parents[2]
CARDS = sorted(path for path in CONFIGS.glob("*.yaml") if path.name != "base.yaml")
PARTS = sorted([*CONFIGS.glob("data/*.yaml"), *CONFIGS.glob("recipe/*.yaml")])
SMALL = [
    "--synth.output=null",
    "--wandb.mode=disabled",
    "--model.hidden_size=32",
    "--model.backend=auto",
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
    "--trainer.strategy=auto",
    "--data.train_manifest=train.jsonl",
    "--data.val_manifest=dev.jsonl",
    "--data.test_manifest=test.jsonl",
    "--data.num_workers=0",
    "--data.global_batch_size=4",
    "--data.per_device_batch_size=4",
    "--data.skipped_share_limit=0.5",
]
TINY = [
    *SMALL,
    "--model.num_layers=2",
    "--model.features.kind=log_mel",
    "--model.features.mel_bins=40",
    "--model.front_end.channels=2",
]


def run_fit(synth_corpus: Path, output: Path, *options: str, base: list[str] = TINY) -> tuple[int, dict[str, Any]]:
    code = main(["fit", *base, f"--data.root={synth_corpus}", f"--output={output}", *options])
    return code, json.loads((output / "result.json").read_text())


def start_fit(synth_corpus: Path, output: Path, *options: str) -> "subprocess.Popen[str]":
    """In a process group of its own."""
    command = [sys.executable, "-m", "experiments", "fit", *TINY, f"--data.root={synth_corpus}", f"--output={output}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("card", CARDS, ids=lambda path: path.stem)
def test_every_card_says_what_it_is_for(card: Path) -> None:
    lines = card.read_text().splitlines()
    for heading in ("Question", "Expected", "Cost", "Command"):
        assert any(line.startswith(f"# {heading}:") for line in lines), f"{card.name} has no {heading}"
    command = next(line for line in lines if line.startswith("# Command:"))
    named = re.findall(r"experiments/configs/[\w/.]+yaml", command)
    assert named == [str(card.relative_to(ROOT))]


@pytest.mark.slow
@pytest.mark.parametrize("card", [*CARDS, *PARTS], ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_every_card_runs_a_step(card: Path, synth_corpus: Path, tmp_path: Path) -> None:
    small = [*SMALL, "--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1"]
    small += ["--trainer.check_val_every_n_epoch=1", "--trainer.val_check_interval=null"]
    code, result = run_fit(
        synth_corpus, tmp_path / "run", "--config", str(card), "--trainer.limit_test_batches=1", base=small
    )
    assert code == 0, result["reason"]
    jsonschema.validate(result, json.loads(SCHEMA_PATH.read_text()))
    assert result["status"] == "finished"
    assert result["steps"] == 1
    assert result["words"] > 0


MISTAKES = {
    "misspelt": (["--model.num_layer=3"], "model.num_layer"),
    "misspelt group": (["--modle.num_layers=3"], "modle.num_layers"),
    "wrong type": (["--model.num_layers=three"], "model.num_layers"),
    "wrong choice": (["--model.activation=gelu"], "clipped_relu"),
    "flag without a value": (["--reuse_commit"], "reuse_commit"),
    "missing card": (["--config", "nowhere.yaml"], "nowhere.yaml"),
    "misspelt in a card": (["--config", '{"model": {"num_layer": 3}}'], "num_layer"),
    "interpolation": (["--config", '{"model": {"dropout": "${nothing.here}"}}'], "model.dropout"),
    "unset environment": (["--config", '{"data": {"vocabulary": "${oc.env:NOT_SET_ANYWHERE}"}}'], "NOT_SET_ANYWHERE"),
    "too few layers": (["--model.num_layers=0"], "num_layers is 0"),
    "no such manifest": (["--data.train_manifest=none.jsonl"], "none.jsonl"),
    "batch does not divide": (["--data.global_batch_size=6"], "global_batch_size 6"),
    "wrong checkpoint": (["--resume=none.ckpt"], "none.ckpt"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_mistake_gets_one_sentence(
    mistake: str, synth_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, named = MISTAKES[mistake]
    code = main(["fit", *TINY, f"--data.root={synth_corpus}", f"--output={tmp_path / 'run'}", *options])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert line.startswith("error: ")
    assert named in line
    assert "Traceback" not in line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_the_card_for_ones_own_speech_runs_a_step(synth_corpus: Path, tmp_path: Path) -> None:
    section = (ROOT / "docs" / "TRAINING.md").read_text().partition("## Your own speech")[2]
    card = yaml.safe_load(section.partition("```yaml\n")[2].partition("```")[0])
    card["include"] = [str(CONFIGS / path) for path in card["include"]]
    assert {"kind", "mel_bins"} <= set(card["model"]["features"])
    assert {"global_batch_size", "per_device_batch_size"} <= set(card["data"])
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(card))
    one = [f"--trainer.limit_{stage}_batches=1" for stage in ("train", "val", "test")]
    card_alone = [*SMALL, f"--config={tmp_path / 'mine.yaml'}", "--model.num_layers=2", "--trainer.max_epochs=1", *one]
    code, result = run_fit(synth_corpus, tmp_path / "run", base=card_alone)
    assert (code, result["steps"]) == (0, 1)


IDLE = [
    "--data.train_manifest=null",
    "--data.val_manifest=null",
    "--trainer.max_epochs=0",
    "--trainer.max_steps=0",
    "--trainer.limit_train_batches=0",
    "--trainer.limit_train_batches=0.0",
    "--trainer.limit_val_batches=0",
    "--trainer.max_time=00:00:00:00",
]


@pytest.mark.slow
@pytest.mark.parametrize("option", IDLE)
def test_a_run_with_nothing_to_do_is_refused_before_it_begins(
    option: str, synth_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *TINY, f"--data.root={synth_corpus}", f"--output={tmp_path / 'run'}", option]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    key, value = option.removeprefix("--").split("=")
    assert line.startswith(f"error: {key} is {value}: no ")
    assert "; " in line, "what to do"
    assert said.out == ""
    assert not (tmp_path / "run").exists()


def test_every_setting_that_can_leave_nothing_to_do_is_tried() -> None:
    from experiments.settings import nothing_to_do

    assert {key for key, *_ in nothing_to_do.IDLE} == {option.removeprefix("--").split("=")[0] for option in IDLE}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_finished_run_that_learnt_nothing_says_so(
    synth_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss is finite, so it did not diverge; its WER tells."""
    options = ["--model.recipe.learning_rate=1e10", "--trainer.max_epochs=1", "--trainer.limit_train_batches=1"]
    code, result = run_fit(synth_corpus, tmp_path / "run", *options)
    assert (code, result["status"], result["converged"], result["steps"]) == (0, "finished", False, 1)
    assert result["wer"] >= 0.95
    assert re.search(
        r"finished; test WER [\d.]+% \(\d+ errors in \d+ words\), not converged; ", capsys.readouterr().out
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_run_asked_for_twice_is_found(synth_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run"
    card = f"--config={CONFIGS / 'demo.yaml'}"
    code, first = run_fit(synth_corpus, output, card, "--trainer.max_epochs=1", "--reuse-commit")
    assert code == 0
    assert yaml.safe_load((output / "config.yaml").read_text()) == first["config"]
    assert (output / "curves.json").exists()
    stamp = (output / "result.json").stat().st_mtime_ns
    code, again = run_fit(synth_corpus, output, "--reuse-commit", "--trainer.max_epochs=1", card)
    assert code == 0
    assert again == first
    assert (output / "result.json").stat().st_mtime_ns == stamp
    assert "already finished" in capsys.readouterr().out
    # What lies in the folder is enough to test the checkpoint again, to the same numbers.
    checkpoint = output / "checkpoints" / "best.ckpt"
    assert main(["test", "--config", str(output / "config.yaml"), f"--ckpt_path={checkpoint}"]) == 0
    said = re.search(r"test/wer\s+│\s+([\d.]+)", capsys.readouterr().out)
    assert said is not None
    assert float(said[1]) == pytest.approx(first["wer"], rel=1e-3)
    assert main(["predict", "--config", str(output / "config.yaml"), f"--ckpt_path={checkpoint}"]) == 0
    heard = [line for line in capsys.readouterr().out.splitlines() if "\t" in line]
    assert len(heard) == len((synth_corpus / "test.jsonl").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_an_exception_leaves_a_failed_result(
    synth_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.recognizer import Recognizer

    def broken(*arguments: Any) -> None:
        raise RuntimeError("the cable is out")

    monkeypatch.setattr(Recognizer, "training_step", broken)
    with pytest.raises(RuntimeError, match="the cable is out"):
        run_fit(synth_corpus, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    jsonschema.validate(result, json.loads(SCHEMA_PATH.read_text()))
    assert (result["status"], result["reason"]) == ("failed", "RuntimeError: the cable is out")
    assert result["parameters"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("sign", ["loss", "gradient"])
def test_a_diverged_run_ends_early_with_a_reason(
    sign: str, synth_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_finite(self: GradientNorm, parameters: Any) -> bool:
        raise NonFiniteGradientsError("20 optimiser steps in a row had a gradient that was not finite")

    if sign == "gradient":
        monkeypatch.setattr(GradientNorm, "apply", not_finite)
    options = ["--divergence.window=2", "--divergence.factor=1e-6", "--trainer.max_epochs=50"]
    code, result = run_fit(synth_corpus, tmp_path / "run", *options)
    assert code == 3
    assert result["status"] == "diverged"
    assert ("times that of the first" if sign == "loss" else "not finite") in result["reason"]
    assert (result["epochs"] or 0) <= 2


@pytest.mark.slow
def test_a_run_that_ends_before_a_validation_says_so_once(synth_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start_fit(synth_corpus, run, "--trainer.max_steps=2", "--trainer.max_epochs=-1")
    said, _ = process.communicate(timeout=250)
    result = json.loads((run / "result.json").read_text())
    assert (process.returncode, result["status"], result["wer"], result["steps"]) == (0, "finished", None, 2)
    assert result["reason"].startswith("training ended before any validation")
    assert "trainer.max_epochs" in result["reason"]
    assert said.count("before any validation") == 1
    assert "ModelCheckpoint" not in said
    assert "site-packages" not in said, "no warning of a library"
    (share,) = [line["data/padding_share"] for line in read_metrics(run / "metrics.jsonl") if "train/loss" in line]
    assert 0 < share < 0.5


@pytest.mark.slow
def test_a_runs_folder_for_a_checkpoint_is_told_what_to_name(
    synth_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = tmp_path / "checkpoints" / "best.ckpt"
    best.parent.mkdir()
    best.touch()
    assert main(["test", *TINY, f"--data.root={synth_corpus}", f"--ckpt_path={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"name its checkpoint {best}" in line


@pytest.mark.slow
@pytest.mark.parametrize(("card", "told"), [("demo", True), ("an4", False)])
def test_corpora_of_a_card_that_speaks_its_own_is_told_to_change_nothing(
    card: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", f"--config={CONFIGS / card}.yaml", "--corpora=elsewhere", "--resume=none.ckpt"]) == 2
    assert ("--corpora changes nothing here" in capsys.readouterr().out) == told


def wait_for(path: Path, process: "subprocess.Popen[str]", seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def numbers(output: Path) -> list[tuple[int, float]]:
    lines = read_metrics(output / "metrics.jsonl")
    return [(line["step"], line["val/loss"]) for line in lines if "val/loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_cut_short_goes_on_to_the_same_end(number: signal.Signals, synth_corpus: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    epochs = "--trainer.max_epochs=6"
    undisturbed = start_fit(synth_corpus, whole, epochs)
    # A scheduler's SIGTERM reaches the workers of the loader too. Minutes of 0: the kill falls into an epoch.
    process = start_fit(synth_corpus, cut, epochs, "--data.num_workers=2", "--checkpoint_minutes=0")
    wait_for(cut / "checkpoints" / "last.ckpt", process)
    time.sleep(0.5)
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.fail("the run ended before the signal; give it more epochs")
    if number == signal.SIGTERM:
        assert process.returncode == 4, said
        assert json.loads((cut / "result.json").read_text())["status"] == "stopped"
    else:
        assert process.returncode == -signal.SIGKILL
        assert not (cut / "result.json").exists()
    again = start_fit(synth_corpus, cut, epochs)
    said, _ = again.communicate(timeout=250)
    assert again.returncode == 0, said
    assert "goes on from" in said
    undisturbed.communicate(timeout=250)
    assert undisturbed.returncode == 0
    (steps, losses), (steps_cut, losses_cut) = (zip(*numbers(path), strict=True) for path in (whole, cut))
    assert len(steps) == 6
    assert steps_cut == steps
    assert losses_cut == pytest.approx(losses, rel=1e-4)
    told = [line["step"] for line in read_metrics(cut / "metrics.jsonl") if "perf/step_ms" in line]
    assert len(told) == len(set(told)), "no step is told twice"
    one, other = (json.loads((path / "result.json").read_text()) for path in (whole, cut))
    for key in ("status", "epochs", "steps", "errors", "words", "val_wer"):
        assert one[key] == other[key], key


@pytest.mark.slow
def test_two_ranks_train_one_run(synth_corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    ranks = ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.per_device_batch_size=1"]
    process = start_fit(synth_corpus, output, "--trainer.max_epochs=2", *ranks)
    said, _ = process.communicate(timeout=280)
    assert process.returncode == 0, said
    result = json.loads((output / "result.json").read_text())
    assert result["world_size"] == 2
    texts = [json.loads(line)["text"] for line in (synth_corpus / "test.jsonl").read_text().splitlines()]
    assert result["words"] == sum(len(text.split()) for text in texts), "each test utterance counts once"
    lines = (synth_corpus / "train.jsonl").read_text().splitlines()
    assert result["steps"] == 2 * -(-len(lines) // 4)


def test_an_unknown_command_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: trian is not a command")
    assert "fit" in line
    assert "transcribe" in line


def test_help_has_an_example_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for name in ("fit", "validate", "test", "predict", "transcribe", "depth"):
        assert f"python -m experiments {name} " in said


@pytest.mark.slow
@pytest.mark.corpora
@pytest.mark.parametrize("name", ["an4", "fsdd", "librispeech_mini"])
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_real_speech_trains_by_naming_its_card(name: str, corpora: Path, tmp_path: Path) -> None:
    limits = [f"--trainer.limit_{stage}_batches=2" for stage in ("train", "val", "test")]
    small = ["--wandb.mode=disabled", f"--corpora={corpora}", "--trainer.max_epochs=1", "--model.hidden_size=32"]
    card = f"--config={CONFIGS / name}.yaml"
    code = main(["fit", card, f"--output={tmp_path / 'run'}", *small, *limits])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert code == 0, result["reason"]
    assert result["words"] > 0
    assert result["val_loss"] > 0
