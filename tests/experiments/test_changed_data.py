"""Data that changes beneath a run, through `fit` itself: one cut short refuses it, one that ended is trained again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from experiments.cli import main
from experiments.run.result import SCHEMA_PATH

OPTIONS = [
    "--synth.output=null",
    "--wandb.mode=disabled",
    "--reuse_commit=true",  # somebody may commit while this runs
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--model.num_layers=1",
    "--model.hidden_size=8",
    "--model.features.kind=log_mel",
    "--model.features.mel_bins=40",
    "--model.front_end.channels=1",
    "--data.train_manifest=train.jsonl",
    "--data.val_manifest=dev.jsonl",
    "--data.test_manifest=test.jsonl",
    "--data.skipped_share_limit=0.5",
    "--data.global_batch_size=4",
    "--data.per_device_batch_size=4",
]


def another_text(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [lines[0] | {"text": "one" if lines[0]["text"] != "one" else "two"}, *lines[1:]]


CHANGES: dict[str, tuple[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "training texts": ("train", another_text, "train had 8 utterances and has 8, with other texts"),
    "training rows": ("train", lambda lines: lines[:-1], "train had 8 utterances and has 7, with other ids"),
    "dev texts": ("dev", another_text, "val had 4 utterances and has 4, with other texts"),
}
OF_A_DONE_RUN = CHANGES | {"test texts": ("test", another_text, "test had 4 utterances and has 4, with other texts")}


@pytest.fixture(scope="module")
def trained(synth_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` and a finished `run` on it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "data").mkdir()
    for split, number in (("train", 8), ("dev", 4), ("test", 4)):
        rows = [json.loads(line) for line in (synth_corpus / f"{split}.jsonl").read_text().splitlines()[:number]]
        # Absolute paths, so that the manifests may be copied; ids of their own then.
        rows = [
            row | {"id": row["audio_filepath"], "audio_filepath": str(synth_corpus / row["audio_filepath"])}
            for row in rows
        ]
        (folder / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert fit(folder) == 0
    return folder


def fit(folder: Path, *options: str) -> int:
    return main(["fit", *OPTIONS, f"--data.root={folder / 'data'}", f"--output={folder / 'run'}", *options])


def changed(trained: Path, folder: Path, change: str) -> tuple[Path, str]:
    """A copy of the folder with a manifest edited in it, and what is to be said."""
    split, edit, said = OF_A_DONE_RUN[change]
    shutil.copytree(trained, folder / "copy")
    manifest = folder / "copy" / "data" / f"{split}.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in edit(lines)))
    return folder / "copy", said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("change", OF_A_DONE_RUN)
def test_a_done_run_is_trained_again(
    change: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, said = changed(trained, tmp_path, change)
    before = json.loads((copy / "run" / "result.json").read_text())
    jsonschema.validate(before, json.loads(SCHEMA_PATH.read_text()))
    assert {split: one["rows"] for split, one in before["data"].items()} == {"train": 8, "val": 4, "test": 4}
    assert fit(copy) == 0
    out = capsys.readouterr().out
    assert said in out
    assert "already finished" not in out
    after = json.loads((copy / "run" / "result.json").read_text())
    assert after["data"] != before["data"]
    assert json.loads((copy / "run" / "previous-1" / "result.json").read_text()) == before
    assert fit(copy) == 0
    assert "already finished; test WER" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("named", [False, True], ids=["its own", "named"])
def test_a_run_cut_short_is_not_gone_on_with(
    change: str, named: bool, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, said = changed(trained, tmp_path, change)
    (copy / "run" / "result.json").unlink()  # as a kill leaves it
    last = copy / "run" / "checkpoints" / "last.ckpt"
    code = fit(copy, f"--resume={last}", f"--output={tmp_path / 'other'}") if named else fit(copy)
    if named and change == "dev texts":
        assert code == 0, "another folder has a best dev WER of its own"
        return
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert said in line
    assert "--resume never" in line
    assert last.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_done_run_whose_corpus_is_gone_says_that_it_cannot_tell(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    shutil.rmtree(copy / "data")
    assert fit(copy) == 0
    assert "whether its data is still the same cannot be told" in capsys.readouterr().out
