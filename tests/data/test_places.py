"""Whatever is wrong with data is told with its place: manifest and line, what was given, what to do."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from data.__main__ import main
from data.alignable import unalignable_rows
from data.audio import AudioError, read_audio
from data.corpus import read_corpus
from data.dataset import MicroBatch, SpeechDataset
from data.manifest import ManifestError
from data.storage import why_unreadable
from data.text import Normalizer
from data.validate import Checks, validate
from data.vocabulary import Vocabulary


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Three utterances of a second, on lines 1, 3 and 4."""
    rows = []
    for name in "abc":
        soundfile.write(tmp_path / f"{name}.wav", np.full(16000, 0.1, np.float32), 16000)
        rows.append(json.dumps({"audio_filepath": f"{name}.wav", "duration": 1.0, "text": "a word"}))
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "m.jsonl").write_text(f"{rows[0]}\n\n{rows[1]}\n{rows[2]}\n")
    return tmp_path / "m.jsonl"


def rewrite(manifest: Path, line: int, **fields: object) -> None:
    lines = manifest.read_text().split("\n")
    lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | fields)
    manifest.write_text("\n".join(lines))


def read(manifest: Path, rows: list[int]) -> None:
    SpeechDataset(read_corpus(manifest), Vocabulary())[MicroBatch(np.array(rows, np.int32), 0, len(rows))]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"audio_filepath": "gone.wav"}, "gone.wav: there is no such file; put it there, mend audio_filepath or take"),
        ({"audio_filepath": "m.jsonl"}, "m.jsonl: the audio cannot be read (Format not recognised); replace the file"),
        ({"audio_filepath": "s9://x/a.wav"}, "the audio cannot be read (fsspec says: Protocol not known: s9"),
        ({"audio_filepath": "folder.wav"}, "folder.wav: the audio cannot be read (it is a folder); replace the file"),
        ({"audio_filepath": "m.jsonl/a.wav"}, "a.wav: there is no such file; put it there"),
        ({"duration": 3.0}, "1.000 s of audio where 3.000 s are expected; mend the duration"),
        ({"offset": 7.0}, "offset 7 s is past its end at 1 s; mend the manifest"),
    ],
)
def test_audio_that_cannot_be_used_is_told_with_its_line(manifest: Path, fields: dict, sentence: str) -> None:
    rewrite(manifest, 3, **fields)
    with pytest.raises(AudioError) as caught:
        read(manifest, [0, 1])
    assert str(caught.value).startswith(f"{manifest}:3: ")
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_what_is_left_out_is_told_with_its_line(manifest: Path, caplog: pytest.LogCaptureFixture) -> None:
    (manifest.parent / "c.wav").unlink()
    dataset = SpeechDataset(read_corpus(manifest), Vocabulary(), audio_error_limit=1)
    assert dataset[MicroBatch(np.array([0, 2], np.int32), 0, 2)].utterance_ids == ["a.wav"]
    assert f"{manifest}:4: " in caplog.text


def test_a_text_too_long_is_told_with_line_characters_and_frames(manifest: Path) -> None:
    rewrite(manifest, 4, text="aab")
    corpus = read_corpus(manifest)
    needed = corpus.frames_needed(Vocabulary(), Normalizer())
    with pytest.raises(ValueError, match=r"1 of 3 .* such as .*m\.jsonl:4: 3 characters need 4 frames and 3 are there"):
        unalignable_rows(
            corpus,
            np.where(np.arange(3) == 2, needed, 0).astype(np.int32),
            lambda samples: torch.full_like(samples, 3),
            sample_rate=16000,
            share_limit=0.1,
        )


def test_characters_outside_the_vocabulary_are_told_with_a_line(manifest: Path) -> None:
    rewrite(manifest, 3, text="naïve ï")
    rewrite(manifest, 4, text="5")
    complaint = read_corpus(manifest).complaint(Vocabulary(), Normalizer())
    assert f"'ï' (2x), '5' (1x), as in 'naïve ï' ({manifest}:3);" in complaint


def test_a_manifest_that_is_none_hides_nothing_of_the_others(
    manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # or the table would break the name
    rewrite(manifest, 3, audio_filepath="gone.wav")
    gone, empty, broken = (manifest.with_name(name) for name in ("gone.jsonl", "empty.jsonl", "broken.arrow"))
    empty.write_text("\n")
    broken.write_text("no index")
    report = manifest.with_name("report.json")
    names = [str(path) for path in (gone, manifest, empty, broken)]
    assert main(["validate", *names, "--report", str(report)]) == 2
    found = {(f["kind"], f["manifest"], f["line"]): f["message"] for f in json.loads(report.read_text())["findings"]}
    assert found["manifest-unusable", names[0], 0].startswith("the manifest cannot be read (No such file")
    assert ("audio-missing", names[1], 3) in found
    assert found["manifest-unusable", names[2], 0] == "no utterance; write one JSON object a line."
    assert "make it with python -m data index" in found["manifest-unusable", names[3], 0]
    assert "gone.wav" in capsys.readouterr().out


@pytest.mark.parametrize("there", [True, False], ids=["fsspec", "without fsspec"])
def test_a_remote_location_is_told_as_it_was_written(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read, checked and packed: never as a file of this machine, never with one slash."""
    monkeypatch.setenv("COLUMNS", "1000")
    written = "s9://bucket/x.wav"
    why = "fsspec says: Protocol not known: s9" if there else "fsspec is not installed; say pip install '.[index]'"
    if not there:
        monkeypatch.setitem(sys.modules, "fsspec", None)
    rewrite(manifest, 3, audio_filepath=written)
    with pytest.raises(AudioError, match=re.escape(f"{manifest}:3: {written}: the audio cannot be read ({why}")):
        read(manifest, [1])
    with pytest.raises(AudioError, match=re.escape(f"{written}: the audio cannot be read ({why}")):
        read_audio(written)
    (found,) = [f for f in validate([manifest], Checks()).findings if f.line == 3]
    assert found.kind == "audio-unreadable"
    assert found.message.startswith(f"{written}: it cannot be read ({why}")
    index = ["index", str(manifest), f"--output={manifest.with_name('i.arrow')}", f"--shards={manifest.parent / 's'}"]
    assert main(index) == 2
    assert f"{written} cannot be read ({why}" in capsys.readouterr().err


def test_why_a_file_is_unreadable_is_the_systems_word(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libsndfile says "Format not recognised" of a folder and "System error" of a file that may not be opened."""
    (found,) = [f for f in validate([_with_audio(manifest, "folder.wav")], Checks()).findings if f.line == 3]
    assert (found.kind, found.message.split(": ")[1]) == ("audio-unreadable", "it cannot be read (it is a folder).")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    error = soundfile.LibsndfileError(2)
    assert why_unreadable(manifest, error) == "Permission denied"
    monkeypatch.undo()
    assert why_unreadable(manifest, error) == str(error.error_string).rstrip(".")


def test_an_index_without_pyarrow_names_the_extra(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "data.index", raising=False)
    with pytest.raises(ManifestError, match=r"i\.arrow: pyarrow is not installed; say pip install '\.\[index\]'"):
        read_corpus(manifest.with_name("i.arrow"))


def _with_audio(manifest: Path, path: str) -> Path:
    rewrite(manifest, 3, audio_filepath=path)
    return manifest
