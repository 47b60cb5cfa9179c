"""A run asked for twice is found; a killed one goes on; another's folder is refused."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from data.fingerprint import contents_of
from experiments.run.folder import RunFolder, begin, locate, locked
from experiments.run.result import Result

HASH, OTHER = "a" * 64, "b" * 64


def where(folder: Path, config_hash: str = HASH, commit: str | None = "c1", **options: Any) -> RunFolder:
    return locate(config_hash, commit, name="demo", seed=3, output=str(folder), **options)


def ended(folder: Path, status: Any = "finished", commit: str = "c1") -> None:
    begin(where(folder, commit=commit))
    Result("demo", {}, HASH, 3, status=status, commit=commit).write(folder)


def on_data(folder: Path, **settings: Any) -> tuple[dict[str, Any], Path]:
    """A run that finished on a small manifest: the settings that name it, and the manifest."""
    manifest = folder / "data" / "train.jsonl"
    manifest.parent.mkdir(parents=True)
    lines = [{"audio_filepath": f"{i}.wav", "duration": 1.0, "text": "one"} for i in range(3)]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"root": str(manifest.parent), "train_manifest": "train.jsonl"}
    begin(where(folder / "run"))
    ended_on = Result("demo", {}, HASH, 3, status="finished", commit="c1", data=contents_of(data), wer=0.1, **settings)
    ended_on.write(folder / "run")
    return data, manifest


def test_a_run_that_ended_is_found_with_its_error_rate_while_its_data_is_the_same(tmp_path: Path) -> None:
    data, _ = on_data(tmp_path, errors=1, words=10)
    found = where(tmp_path / "run", data=data)
    assert found.finished is not None
    assert found.messages[0].startswith("already finished; test WER 10.0% (1 errors in 10 words)")
    assert "data" not in found.messages[0].replace("data/", "")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.partition("\n")[2], "train had 3 utterances and has 2, with other ids"),
        (lambda text: text.replace("one", "two", 1), "train had 3 utterances and has 3, with other texts"),
        (lambda text: text.replace("1.0", "2.0", 1), "train had 3 utterances and has 3, with other durations"),
    ],
)
def test_a_run_that_ended_on_other_data_is_trained_again_and_kept(tmp_path: Path, edit: Any, said: str) -> None:
    data, manifest = on_data(tmp_path)
    manifest.write_text(edit(manifest.read_text()))
    found = where(tmp_path / "run", data=data)
    assert found.finished is None
    assert said in found.messages[0]
    assert "trained again" in found.messages[0]
    begin(found)
    assert (tmp_path / "run" / "previous-1" / "result.json").exists()


def test_a_run_whose_manifests_are_gone_says_that_it_cannot_tell(tmp_path: Path) -> None:
    data, manifest = on_data(tmp_path)
    manifest.unlink()
    found = where(tmp_path / "run", data=data)
    assert found.finished is not None
    assert "whether its data is still the same cannot be told" in found.messages[0]
    assert str(manifest) in found.messages[0]


def test_a_run_from_before_its_data_was_recorded_is_found_and_says_so(tmp_path: Path) -> None:
    data, _ = on_data(tmp_path)
    path = tmp_path / "run" / "result.json"
    record = json.loads(path.read_text())
    del record["data"]
    path.write_text(json.dumps(record))
    found = where(tmp_path / "run", data=data)
    assert found.finished is not None
    assert "trained before that was recorded" in found.messages[0]


def checkpoint(folder: Path) -> Path:
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    last = folder / "checkpoints" / "last.ckpt"
    with zipfile.ZipFile(last, "w") as archive:  # as torch writes them
        archive.writestr("weights", "weights")
    return last


def test_without_output_each_identity_has_its_own_folder(tmp_path: Path) -> None:
    one, other = (locate(h, "c1", name="demo", seed=3, output=None, root=str(tmp_path)) for h in (HASH, OTHER))
    assert one.path == tmp_path / "demo-s3-aaaaaaaaaa"
    assert one.path != other.path


def test_looking_writes_nothing(tmp_path: Path) -> None:
    where(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_run_that_ended_is_found(tmp_path: Path, status: str) -> None:
    ended(tmp_path, status)
    found = where(tmp_path)
    assert found.finished is not None
    assert found.finished["status"] == status
    assert str(tmp_path) in found.messages[0]


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_a_run_that_was_cut_short_goes_on(tmp_path: Path, status: str) -> None:
    ended(tmp_path, status)
    assert where(tmp_path).resume_from is None
    last = checkpoint(tmp_path)
    assert where(tmp_path).resume_from == last
    assert where(tmp_path).finished is None
    begin(where(tmp_path))
    assert not (tmp_path / "result.json").exists()
    assert last.exists()


def test_a_killed_run_goes_on_and_says_under_which_commit_it_began(tmp_path: Path) -> None:
    begin(where(tmp_path, commit="c0"))
    last = checkpoint(tmp_path)
    found = where(tmp_path)
    assert found.resume_from == last
    assert "c0" in found.messages[0]


def test_a_result_of_another_commit_is_told_and_taken_only_when_asked(tmp_path: Path) -> None:
    ended(tmp_path, commit="c0")
    again = where(tmp_path)
    assert again.finished is None
    assert "c0" in again.messages[0]
    assert "--reuse-commit" in again.messages[0]
    assert where(tmp_path, reuse_commit=True).finished is not None


def test_what_is_trained_again_is_put_aside_not_lost(tmp_path: Path) -> None:
    ended(tmp_path, commit="c0")
    (tmp_path / "log.txt").write_text("the runner writes here")
    begin(where(tmp_path))
    assert json.loads((tmp_path / "previous-1" / "result.json").read_text())["commit"] == "c0"
    assert not (tmp_path / "result.json").exists()
    assert (tmp_path / "log.txt").exists()
    begin(where(tmp_path, resume="never"))
    assert (tmp_path / "previous-2" / "run.json").exists()


def test_another_runs_folder_is_refused(tmp_path: Path) -> None:
    ended(tmp_path)
    with pytest.raises(ValueError, match="holds another run"):
        where(tmp_path, config_hash=OTHER)


def test_a_mistake_before_the_first_step_does_not_keep_the_folder(tmp_path: Path) -> None:
    ended(tmp_path, "failed")
    corrected = where(tmp_path, config_hash=OTHER)
    assert corrected.put_aside
    assert "never trained" in corrected.messages[0]
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match="holds another run"):
        where(tmp_path, config_hash=OTHER)


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="auto, never or the path"):
        where(tmp_path, resume=str(tmp_path / "no.ckpt"))


@pytest.mark.parametrize("content", [b"", b"this is text", b"tiny", b"PK\x03\x04"])
def test_half_a_checkpoint_is_refused_with_the_way_out(content: bytes, tmp_path: Path) -> None:
    begin(where(tmp_path))
    half = checkpoint(tmp_path)
    half.write_bytes(content or half.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"half a checkpoint; say --resume never"):
        where(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint, or half of one"):
        where(tmp_path, resume=str(half))
    assert where(tmp_path, resume="never").put_aside


def test_a_folder_to_go_on_from_is_told_which_checkpoint(tmp_path: Path) -> None:
    other = tmp_path / "other"
    last = checkpoint(other)
    with pytest.raises(ValueError, match=f"name its checkpoint {last}"):
        where(tmp_path / "run", resume=str(other))


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_damaged_record_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{")
    with pytest.raises(ValueError, match=name):
        where(tmp_path)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ValueError, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
