"""`transcribe`: odd audio files, order, failures one by one; the same text alone and in a batch."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from experiments.cli import main
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.recognizer import Recognizer

RATE = 16000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained recogniser: it babbles, and what it babbles depends on every sample."""
    torch.manual_seed(0)
    model = Recognizer(
        num_layers=2,
        hidden_size=16,
        features=FeatureOptions(kind="log_mel", mel_bins=20, normalization="utterance"),
        front_end=FrontEndOptions(channels=2, first_kernel=(5, 5), second_kernel=(5, 5)),
    )
    with torch.no_grad():
        model.network.head.linear.weight.mul_(30)
    path = tmp_path_factory.mktemp("checkpoint") / "best.ckpt"
    torch.save({"hyper_parameters": dict(model.hparams), "state_dict": model.state_dict()}, path)
    return path


def tone(seconds: float, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """A chirp in noise."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.01, len(time))
    return 0.3 * np.sin(2 * np.pi * (200 + 300 * time) * time) + noise


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


@pytest.fixture
def readable(tmp_path: Path) -> list[Path]:
    """Every depth, rate, number of channels and format that people have."""
    files = {
        "plain.wav": (tone(0.8), RATE, "PCM_16"),
        "deep.wav": (tone(0.5), RATE, "PCM_24"),
        "shallow.wav": (tone(1.1), RATE, "PCM_U8"),
        "float.wav": (tone(0.3), RATE, "FLOAT"),
        "slow.wav": (tone(0.9, 8000), 8000, "PCM_16"),
        "fast.flac": (tone(0.4, 44100), 44100, "PCM_16"),
        "stereo.wav": (np.stack([tone(0.7), tone(0.7, seed=1)], axis=1), RATE, "PCM_16"),
        "song.mp3": (tone(0.6), RATE, None),
        "note.ogg": (tone(1.3), RATE, "VORBIS"),
        "space in name é.opus": (tone(0.2), RATE, "OPUS"),
    }
    for name, (samples, rate, subtype) in files.items():
        soundfile.write(tmp_path / name, samples, rate, subtype=subtype, format="OGG" if "opus" in name else None)
    return [tmp_path / name for name in files]


def test_any_format_in_the_order_given(
    checkpoint: Path, readable: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(checkpoint), *map(str, reversed(readable)), "--batch-size", "3"]) == 0
    out, err = lines(capsys)
    assert [line.split("\t")[0] for line in out] == [str(path) for path in reversed(readable)]
    assert err == []


def test_the_text_is_the_same_alone_and_in_a_batch(
    checkpoint: Path, readable: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for size in ("1", "4", "100"):
        assert main(["transcribe", str(checkpoint), *map(str, readable), "--batch-size", size]) == 0
        said.append(lines(capsys)[0])
    assert said[0] == said[1] == said[2]
    assert len({line.split("\t")[1] for line in said[0]}) > 3, "a recogniser that says one thing proves nothing"


def test_json_lines_have_times_within_the_audio(
    checkpoint: Path, readable: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(checkpoint), str(readable[0]), "--json"]) == 0
    (line,) = map(json.loads, lines(capsys)[0])
    assert line["path"] == str(readable[0])
    assert " ".join(word["text"] for word in line["words"]) == line["text"]
    edges = [edge for span in line["characters"] for edge in (span["start"], span["end"])]
    assert edges == sorted(edges)
    assert 0 <= edges[0] <= edges[-1] <= 0.8 + 0.2  # the padding after the audio


def test_what_fails_is_told_and_the_rest_is_transcribed(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "good.wav", tone(0.5), RATE)
    soundfile.write(tmp_path / "none.wav", tone(0), RATE)
    soundfile.write(tmp_path / "click.wav", tone(0.001), RATE)
    soundfile.write(tmp_path / "nan.wav", np.full(RATE, np.nan), RATE, subtype="FLOAT")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("not audio at all")
    whole = (tmp_path / "good.wav").read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[:20])
    bad = ["none.wav", "click.wav", "nan.wav", "empty.wav", "text.wav", "cut.flac", "missing.wav"]
    files = [str(tmp_path / name) for name in ("good.wav", *bad, "good.wav")]
    assert main(["transcribe", str(checkpoint), *files]) == 1
    out, err = lines(capsys)
    assert [line.split("\t")[0] for line in out] == [files[0], files[-1]]
    assert out[0] == out[1]
    assert len(err) == len(bad)
    for name, sentence in zip(bad, err, strict=True):
        assert sentence.startswith(str(tmp_path / name))
        assert sentence.count("; ") == 1, "one remedy"
        assert not re.search("line|manifest|duration", sentence), "that is what a corpus needs"


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", b"this is text", b"hello", b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_gets_one_sentence(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.ckpt"
    if content is not None:
        path.write_bytes(content)
    assert main(["transcribe", str(path), "a.wav"]) == 2
    out, err = lines(capsys)
    assert out == []
    assert len(err) == 1
    assert err[0].startswith("error: ")
    assert str(path) in err[0]


@pytest.mark.parametrize("given", ["run", "run/checkpoints", "empty"])
def test_a_folder_for_a_checkpoint_is_told_which(
    given: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = tmp_path / "run" / "checkpoints" / "best.ckpt"
    best.parent.mkdir(parents=True)
    best.write_bytes(checkpoint.read_bytes())
    (tmp_path / "empty").mkdir()
    assert main(["transcribe", str(tmp_path / given), "a.wav"]) == 2
    (line,) = lines(capsys)[1]
    assert ("name its checkpoint" in line and str(best) in line) == (given != "empty")
    assert "best.ckpt" in line


def test_a_checkpoint_of_something_else_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.ckpt"
    torch.save({"weights": torch.zeros(1)}, path)
    assert main(["transcribe", str(path), "a.wav"]) == 2
    assert len(lines(capsys)[1]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs where there is no GPU: asking for one is no mistake here")
def test_a_device_that_is_not_there_gets_one_sentence(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", str(checkpoint), "a.wav", "--device", "cuda"]) == 2
    assert "say --device cpu" in lines(capsys)[1][0]
