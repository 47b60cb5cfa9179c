"""`python -m data`: each mistake is one sentence on one line, exit code 2; an importer names file and line."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data.__main__ import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One utterance, and files that are not what they should be."""
    soundfile.write(tmp_path / "a.wav", np.zeros(22050, np.float32), 22050)
    row = {"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}
    (tmp_path / "m.jsonl").write_text(json.dumps(row))
    (tmp_path / "gone.jsonl").write_text(json.dumps(row | {"audio_filepath": "gone.wav"}))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "claimed").mkdir()
    (tmp_path / "claimed" / "corpus.json").write_text("{")
    (tmp_path / "t.csv").write_bytes(b"path,text\na.wav,caf\xe9\n")
    (tmp_path / "cv").mkdir()
    (tmp_path / "cv" / "train.tsv").write_text("\n")
    (tmp_path / "texts").mkdir()
    soundfile.write(tmp_path / "texts" / "a.wav", np.zeros(100, np.float32), 8000)
    (tmp_path / "texts" / "a.txt").write_bytes(b"caf\xe9")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "COMMAND must be given; say python -m data --help"),
        ("validat", "COMMAND is validat; choose from synth, validate"),
        ("validate", "MANIFEST must be given; say python -m data validate --help"),
        ("validate {0}/m.jsonl --decod", "--decod is no option; did you mean --decode?"),
        ("validate {0}/m.jsonl --jobs 0", "--jobs: '0' is not a whole number of 1 or more"),
        ("validate {0}/m.jsonl --frame-stride -1", "--frame-stride: '-1' is not a number above 0"),
        ("validate {0}/m.jsonl --vocabulary {0}/latin.txt", "latin.txt: not UTF-8 (byte 3); save it as UTF-8"),
        ("validate {0}/m.jsonl --report {0}/a.wav/r.json", "a.wav: File exists; check the path"),
        ("synth {0}/m.jsonl", "m.jsonl is a file; name a folder"),
        ("synth {0}/claimed", "corpus.json: not JSON"),
        ("synth {0}/new --hours 0", "--hours: '0' is not a number above 0"),
        ("synth {0}/new --splits train=0", "splits is {{'train': 0.0}}; name shares above zero"),
        ("synth {0}/new --words {0}/latin.txt", "latin.txt: not UTF-8 (byte 3)"),
        ("synth {0}/new --words {0}/empty.txt", "empty.txt: no word in it; write one a line"),
        ("synth {0}/new --words {0}/gone.txt", "gone.txt: cannot be read (No such file or directory); check the path"),
        ("import csv {0}/t.csv {0}/out", "t.csv: not UTF-8 (byte 19); save it as UTF-8"),
        ("import commonvoice {0}/cv {0}/out", "train.tsv: it is empty"),
        ("import folder {0}/texts {0}/out", "a.txt: not UTF-8 (byte 3)"),
        ("import kald {0} {0}/out", "KIND is kald; choose from librispeech"),
        ("index {0}/m.jsonl --output {0}/x.bin", "x.bin: an index is known by its name"),
        ("index {0}/gone.jsonl --output {0}/x.arrow --shards {0}/s", "gone.jsonl:1: {0}/gone.wav cannot be read"),
        (
            "index {0}/m.jsonl --output {0}/x.arrow --shards {0}/s --codec opus",
            "m.jsonl:1: {0}/a.wav: Opus has no rate of 22050",
        ),
        ("vocabulary {0}/m.jsonl --output {0}/none/v.txt", "none/v.txt: No such file or directory; check the path"),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    assert main(words.format(folder).split()) == 2
    said = capsys.readouterr().err
    assert sentence.format(folder) in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "Errno" not in said
