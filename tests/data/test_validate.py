"""`data validate`: each kind of fault is found, on its line and on no other; a clean corpus has none."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from data.__main__ import main
from data.findings import KINDS, exit_code
from data.text import Normalizer
from data.validate import Checks, validate
from data.vocabulary import Vocabulary

RATE = 16000


def noise(seconds: float, seed: int, level: float = 0.3) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-level, level, round(seconds * RATE)).astype(np.float32)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    """A manifest with every fault of one line, and the lines that each kind is on."""
    folder = tmp_path_factory.mktemp("faulty")
    lines: list[str] = []
    expected: dict[str, list[int]] = {}

    def add(
        *kinds: str, raw: str | None = None, samples: np.ndarray | None = None, rate: int = RATE, **fields: Any
    ) -> Path:
        number = len(lines) + 1
        path = folder / f"{number}.wav"
        soundfile.write(path, noise(1, number) if samples is None else samples, rate, subtype="FLOAT")
        row = {"audio_filepath": path.name, "duration": 1.0, "text": "a word", **fields}
        lines.append(json.dumps(row) if raw is None else raw)
        for kind in kinds:
            expected.setdefault(kind, []).append(number)
        return path

    add()
    add("manifest-line", raw="{")
    add("manifest-line", raw='{"audio_filepath": "1.wav", "duration": 1.0, "text": "the same id"}')
    add("audio-missing", audio_filepath="gone.wav")
    add("audio-unreadable").write_bytes(b"not audio")
    add("audio-empty", samples=noise(0, 0))
    add("audio-not-finite", samples=np.where(np.arange(RATE) == 5, np.nan, noise(1, 7)))
    add("duration-mismatch", duration=1.5)
    add("duration-mismatch", duration=0.5)
    add(duration=0.5, offset=0.0)
    add(duration=0.25, offset=0.5)
    add("duration-mismatch", duration=0.75, offset=0.5)
    add("unknown-character", text="ünder")
    add("unknown-character", text="Upper")
    add("unalignable", "speech-rate", text="a" * 40)
    add("empty-text", text="  ")
    add("text-not-normalised", text=" two  words")
    add("several-channels", samples=np.stack([noise(1, 1000), noise(1, 1001)], 1))
    add("other-sample-rate", samples=noise(0.5, 1002), rate=8000)
    add("silent", samples=noise(1, 1003, 1e-4))
    add("clipped", samples=np.clip(20 * np.sin(np.arange(RATE) / 9), -1, 1).astype(np.float32))
    shutil.copy(folder / "1.wav", add("same-audio-twice"))
    truncated = add("audio-truncated", audio_filepath="truncated.flac").with_name("truncated.flac")
    soundfile.write(truncated, noise(1, 99), RATE)
    truncated.write_bytes(truncated.read_bytes()[:20000])
    expected["duration-mismatch"].append(len(lines))
    add("too-long", "speech-rate", samples=noise(36, 1004), duration=36.0, text="a word")
    (folder / "m.jsonl").write_text("\n".join(lines))
    return folder / "m.jsonl", expected


def found_in(manifest: Path, **options: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for finding in validate([manifest], Checks(**options), jobs=2).findings:
        found.setdefault(finding.kind, []).append(finding.line)
        assert "\n" not in finding.message
        assert finding.message.endswith(".")
    return found


def test_every_fault_is_found_on_its_line_and_on_no_other(faulty: tuple[Path, dict[str, list[int]]]) -> None:
    manifest, expected = faulty
    assert found_in(manifest, decode=True) == expected
    assert set(expected) | {"leakage", "shared-speaker", "manifest-unusable"} == set(KINDS)


def test_headers_alone_find_all_but_what_needs_samples(faulty: tuple[Path, dict[str, list[int]]]) -> None:
    manifest, expected = faulty
    found = found_in(manifest)
    needs_samples = {"audio-not-finite", "silent", "clipped", "audio-truncated"}
    assert {kind for kind in expected if kind not in needs_samples} == set(found)
    assert set(expected["duration-mismatch"]) - set(found["duration-mismatch"]) <= set(expected["audio-truncated"])


def test_policies_change_what_is_a_fault(faulty: tuple[Path, dict[str, list[int]]]) -> None:
    manifest, expected = faulty
    lower = found_in(manifest, normalizer=Normalizer(case="lower"))["unknown-character"]
    assert lower == expected["unknown-character"][:1]
    assert "unknown-character" not in found_in(manifest, vocabulary=Vocabulary(" 'abcdefghijklmnopqrstuvwxyzUü"))
    assert "unalignable" not in found_in(manifest, pad_seconds=0.5)
    assert "unalignable" not in found_in(manifest, frame_stride=0.01)


def test_the_same_audio_or_speaker_in_two_splits_is_found_by_content(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(1, 0), RATE, subtype="PCM_16")
    samples, _ = soundfile.read(tmp_path / "a.wav")
    soundfile.write(tmp_path / "copy.flac", samples, RATE, subtype="PCM_16")
    for split, name in (("train", "a.wav"), ("test", "copy.flac")):
        row = {"audio_filepath": name, "duration": 1.0, "text": "a word", "speaker": "same"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    manifests = [tmp_path / "train.jsonl", tmp_path / "test.jsonl"]
    found = validate(manifests, Checks(decode=True)).findings
    assert [(finding.kind, finding.manifest, finding.line) for finding in found] == [
        ("shared-speaker", str(manifests[1]), 0),
        ("leakage", str(manifests[1]), 1),
    ]
    assert f"{manifests[0]}:1 (a.wav)" in found[1].message


def test_only_the_same_samples_are_the_same_audio(tmp_path: Path) -> None:
    """Whatever a float can hold: NaN, infinity, what is too quiet for 16 bits, what is beyond full scale."""
    bump = np.where(np.arange(RATE) == 5, np.float32(1), np.float32(0))
    levels = [0.0, np.nan, np.inf, -np.inf, 1e-6, 2e-6, 1e-40, 0.5, 1.0, 1.5, 1.5 + 2 / 32767 * 32768, -1.0, -3.0, 1e30]
    paths = []
    for number, level in enumerate(levels):
        samples = np.where(bump > 0, np.float32(level), np.float32(0))
        for subtype in ("FLOAT", "DOUBLE"):  # the same samples twice
            paths.append(tmp_path / f"{number}-{subtype}.wav")
            soundfile.write(paths[-1], samples, RATE, subtype=subtype)
    rows = [{"audio_filepath": path.name, "duration": 1.0, "text": "a word"} for path in paths]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = validate([tmp_path / "m.jsonl"], Checks(decode=True)).findings
    twice = {f.line: f.message for f in found if f.kind == "same-audio-twice"}
    assert sorted(twice) == list(range(2, len(paths) + 1, 2))
    assert all(f"m.jsonl:{line - 1} " in message for line, message in twice.items())


def test_how_silent_is_told_in_decibels_and_zero_in_words(tmp_path: Path) -> None:
    levels = {"zero": 0.0, "faint": 1e-6, "quiet": 9e-4, "loud": 2e-3}
    for name, level in levels.items():
        soundfile.write(tmp_path / f"{name}.wav", np.full(RATE, level, np.float32), RATE, subtype="FLOAT")
    rows = [{"audio_filepath": f"{name}.wav", "duration": 1.0, "text": "a word"} for name in levels]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = validate([tmp_path / "m.jsonl"], Checks(decode=True)).findings
    assert [(f.kind, f.message.split(";")[0]) for f in found] == [
        ("silent", "all samples are 0"),
        ("silent", "the peak is -120 dB of full scale"),
        ("silent", "the peak is -61 dB of full scale"),
    ]


def test_a_clean_corpus_is_clean(synth_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests = [str(synth_corpus / f"{split}.jsonl") for split in ("train", "dev", "test")]
    report, plots = tmp_path / "r" / "report.json", tmp_path / "plots"
    assert main(["validate", *manifests, "--decode", "--report", str(report), "--plots", str(plots)]) == 0
    assert "No findings." in capsys.readouterr().out
    content = json.loads(report.read_text())
    assert content["findings"] == []
    assert list(content["manifests"]) == manifests
    assert content["manifests"][manifests[0]]["speakers"] == 4
    assert sum(of["hours"] for of in content["manifests"].values()) == pytest.approx(0.026, abs=0.003)
    assert set(content["characters"]) == set("zero one two three four five six seven eight nine")
    for name in ("durations", "characters_per_second"):
        assert (plots / f"{name}.svg").read_text().startswith("<svg")


def test_an_index_over_shards_is_checked_as_its_manifest_is(synth_corpus: Path, tmp_path: Path) -> None:
    index, shards = tmp_path / "dev.arrow", tmp_path / "shards"
    assert main(["index", str(synth_corpus / "dev.jsonl"), "--output", str(index), "--shards", str(shards)]) == 0
    assert main(["validate", str(index), "--decode"]) == 0
    (shard,) = shards.glob("*.tar")
    content = bytearray(shard.read_bytes())
    content[600:3000] = bytes(2400)  # of the first utterance
    shard.write_bytes(content)
    found = validate([index], Checks(decode=True)).findings
    assert {finding.line for finding in found} == {1}
    assert exit_code(found) == 2


def test_exit_codes_follow_severity(faulty: tuple[Path, dict[str, list[int]]], tmp_path: Path) -> None:
    manifest, _ = faulty
    report = tmp_path / "report.json"
    assert main(["validate", str(manifest), "--report", str(report)]) == 2
    findings = json.loads(report.read_text())["findings"]
    assert {"kind", "severity", "manifest", "line", "id", "message"} == set(findings[0])
    assert [finding["severity"] for finding in findings] == [KINDS[finding["kind"]] for finding in findings]
    warnings = validate([manifest], Checks()).findings
    assert exit_code([finding for finding in warnings if finding.severity == "warning"]) == 1
    assert main(["validate", str(tmp_path / "gone.jsonl")]) == 2


@pytest.mark.corpora
@pytest.mark.slow
@pytest.mark.parametrize(("name", "kinds"), [("an4", {}), ("fsdd", {"shared-speaker": 3}), ("librispeech-mini", {})])
def test_real_corpora_have_only_the_findings_that_are_true(corpora: Path, name: str, kinds: dict[str, int]) -> None:
    """FSDD's official split shares its six speakers between all three parts; nothing else is found."""
    splits = [corpora / name / f"{split}.jsonl" for split in ("train", "dev", "test")]
    found = validate(splits, Checks(decode=True)).findings
    assert {kind: sum(f.kind == kind for f in found) for kind in {f.kind for f in found}} == kinds
