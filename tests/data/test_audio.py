"""Audio: formats and depths, channels, rates, segments; and a typed error with the path for what cannot be used."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from data.audio import AudioError, read_audio, resample

RATE = 16000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def write(path: Path, samples: np.ndarray = TONE, rate: int = RATE, **options: str) -> Path:
    soundfile.write(path, samples, rate, **options)
    return path


@pytest.mark.parametrize(
    ("name", "subtype", "tolerance"),
    [
        ("a.wav", "PCM_U8", 1 / 100),
        ("a.wav", "PCM_16", 1e-4),
        ("a.wav", "PCM_24", 1e-6),
        ("a.wav", "PCM_32", 1e-6),
        ("a.wav", "FLOAT", 0),
        ("a.wav", "DOUBLE", 0),
        ("a.flac", "PCM_16", 1e-4),
        ("a.flac", "PCM_24", 1e-6),
    ],
)
def test_every_depth_gives_the_same_samples(tmp_path: Path, name: str, subtype: str, tolerance: float) -> None:
    read = read_audio(write(tmp_path / name, subtype=subtype))
    assert read.dtype == torch.float32
    assert read.shape == (RATE,)
    assert np.abs(read.numpy() - TONE).max() <= tolerance


@pytest.mark.parametrize(
    ("name", "options"), [("a.ogg", {"subtype": "OPUS"}), ("a.ogg", {"subtype": "VORBIS"}), ("a.mp3", {})]
)
def test_lossy_formats_keep_the_tone(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    read = read_audio(write(tmp_path / name, **options)).numpy()
    assert abs(len(read) - RATE) <= 0.1 * RATE
    spectrum = np.abs(np.fft.rfft(read))
    assert abs(np.argmax(spectrum) * RATE / len(read) - 440) < 2


def test_channels_follow_the_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.stack([TONE, -0.5 * TONE], 1), subtype="FLOAT")
    assert np.allclose(read_audio(path).numpy(), 0.25 * TONE, atol=1e-7)
    assert np.array_equal(read_audio(path, channel=0).numpy(), TONE)
    assert np.array_equal(read_audio(path, channel=1).numpy(), -0.5 * TONE)
    with pytest.raises(AudioError, match=r"a\.wav: 2 channels; set channel"):
        read_audio(path, channel="error")
    with pytest.raises(AudioError, match="channel 2 asked of 2"):
        read_audio(path, channel=2)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_other_rates_are_resampled_by_a_good_filter(tmp_path: Path, rate: int) -> None:
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.float32)
    read = read_audio(write(tmp_path / "a.wav", tone, rate, subtype="FLOAT")).numpy()
    assert len(read) == RATE
    inner = slice(RATE // 10, -RATE // 10)
    assert np.abs(read[inner] - TONE[inner]).max() < 1e-3


def test_what_is_above_the_new_rate_does_not_fold_back() -> None:
    high = torch.sin(2 * torch.pi * 20000 / 48000 * torch.arange(48000, dtype=torch.float64)).float()
    assert resample(high, 48000, 16000)[1000:-1000].abs().max() < 1e-3


def test_a_segment_is_the_part_of_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", subtype="FLOAT")
    part = read_audio(path, offset=0.25, duration=0.5).numpy()
    assert np.array_equal(part, TONE[4000:12000])
    assert np.array_equal(read_audio(path, offset=0.75).numpy(), TONE[12000:])


def test_bytes_inside_a_shard_read_as_the_file_does(tmp_path: Path) -> None:
    content = write(tmp_path / "a.flac").read_bytes()
    shard = tmp_path / "shard.tar"
    shard.write_bytes(b"x" * 100 + content + b"y" * 50)
    span = (100, len(content))
    assert torch.equal(read_audio(shard, byte_span=span), read_audio(tmp_path / "a.flac"))
    with pytest.raises(AudioError, match=r"shard\.tar: .*it ends before byte"):
        read_audio(shard, byte_span=(100, len(content) + 51))


def test_files_of_every_format_are_read_inside_another_and_none_is_left_open(tmp_path: Path) -> None:
    names = {"a.wav": {}, "b.flac": {}, "c.ogg": {"subtype": "OPUS"}, "d.ogg": {"subtype": "VORBIS"}, "e.mp3": {}}
    files = [write(tmp_path / name, **options) for name, options in names.items()]
    files += [write(tmp_path / "f.flac", TONE[:8000]), write(tmp_path / "g.flac", np.stack([TONE, -TONE / 2], 1))]
    shard, start = tmp_path / "shard.tar", 512
    shard.write_bytes(b"\0" * 512 + b"".join(path.read_bytes() for path in files) + b"\0" * 1024)
    spans = []
    for path in files:
        spans.append((start, path.stat().st_size))
        start += path.stat().st_size
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for path, span in zip(files, spans, strict=True):
        assert torch.equal(read_audio(shard, byte_span=span, to_end=True), read_audio(path)), path.name
        part = {"offset": 0.1, "duration": 0.2}
        assert torch.equal(read_audio(shard, byte_span=span, **part), read_audio(path, **part)), path.name
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"fLaC" + b"junk" * 100)
    for _ in range(3):
        with pytest.raises(AudioError, match="cannot be read"):
            read_audio(broken, byte_span=(0, 400))
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_a_little_less_than_the_manifest_says_is_tolerated_and_more_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav")
    assert len(read_audio(path, duration=1.05)) == RATE
    with pytest.raises(AudioError, match=r"1\.000 s of audio where 1\.200 s are expected"):
        read_audio(path, duration=1.2)
    with pytest.raises(AudioError, match="offset 1 s is past its end"):
        read_audio(path, offset=1.0, duration=0.5)


def bad_files(folder: Path) -> dict[str, Path]:
    flac = write(folder / "whole.flac", np.random.default_rng(0).standard_normal(RATE).astype(np.float32) * 0.1)
    wav = write(folder / "whole.wav")
    files = {
        "missing": folder / "missing.wav",
        "folder": folder,
        "text": folder / "text.wav",
        "no bytes": folder / "none.flac",
        "truncated flac": folder / "truncated.flac",
        "header alone": folder / "header.wav",
        "no samples": write(folder / "empty.wav", TONE[:0]),
        "NaN": write(folder / "nan.wav", np.where(np.arange(RATE) == 99, np.nan, TONE), subtype="FLOAT"),
        "infinite": write(folder / "inf.wav", np.where(np.arange(RATE) == 99, np.inf, TONE), subtype="FLOAT"),
    }
    files["text"].write_text("not audio at all, only a sentence of text " * 10)
    files["no bytes"].write_bytes(b"")
    files["truncated flac"].write_bytes(flac.read_bytes()[: flac.stat().st_size // 2])
    files["header alone"].write_bytes(wav.read_bytes()[:44])
    return files


KINDS = ["missing", "folder", "text", "no bytes", "truncated flac", "header alone", "no samples", "NaN", "infinite"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_used_is_a_typed_error_with_the_path(tmp_path: Path, kind: str) -> None:
    path = bad_files(tmp_path)[kind]
    with pytest.raises(AudioError) as caught:
        read_audio(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith(".")
    with pytest.raises(AudioError):
        read_audio(path, duration=1.0)


def test_a_truncated_wav_disagrees_with_its_manifest(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.wav")
    whole.write_bytes(whole.read_bytes()[: 44 + RATE])
    with pytest.raises(AudioError, match=r"0\.500 s of audio where 1\.000 s are expected"):
        read_audio(whole, duration=1.0)
