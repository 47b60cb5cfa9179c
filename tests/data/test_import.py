"""`data import`: each layout, as its makers lay it out; speakers and official splits kept, nothing dropped silently."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from data.__main__ import main
from data.audio import read_audio
from data.import_corpus import import_corpus
from data.importers import KINDS
from data.importers.found import LayoutError
from data.manifest import Utterance, read_manifest, write_manifest
from data.text import Normalizer

RATE = 16000


def sound(path: Path, seconds: float = 0.5, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * RATE))
    options = {"format": "OGG", "subtype": "OPUS"} if path.suffix == ".opus" else {}
    soundfile.write(path, samples, RATE, **({"format": "NIST"} if path.suffix == ".sph" else options))
    return path


def text(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def imported(kind: str, source: Path, out: Path) -> dict[str, list[tuple[str, str, str | None, float]]]:
    """Split -> (id, text, speaker, duration); audio of each is read."""
    result = import_corpus(kind, source, out, jobs=2)
    assert json.loads((out / "import.json").read_text())["problems"] == result.problems
    rows = {path.stem: read_manifest(path) for path in result.manifests}
    for row in (row for split in rows.values() for row in split):
        samples = read_audio(
            row.audio_filepath,
            offset=row.offset,
            duration=row.duration,
            byte_span=row.byte_span,
            to_end=not row.segment,
        )
        assert len(samples) == pytest.approx(row.duration * RATE, abs=2)
    return {s: [(row.id, row.text, row.speaker, round(row.duration, 3)) for row in split] for s, split in rows.items()}


def test_librispeech(tmp_path: Path) -> None:
    root = tmp_path / "LibriSpeech"
    for subset, speaker in (("train-clean-100", "19"), ("dev-clean", "84")):
        chapter = root / subset / speaker / "198"
        sound(chapter / f"{speaker}-198-0000.flac")
        text(chapter / f"{speaker}-198.trans.txt", f"{speaker}-198-0000 NORTHANGER ABBEY")
    expected = {
        "dev-clean": [("84-198-0000", "NORTHANGER ABBEY", "84", 0.5)],
        "train-clean-100": [("19-198-0000", "NORTHANGER ABBEY", "19", 0.5)],
    }
    assert imported("librispeech", tmp_path, tmp_path / "a") == expected
    assert imported("librispeech", root, tmp_path / "b") == expected
    assert set(imported("librispeech", root / "dev-clean", tmp_path / "c")) == {"dev-clean"}


def test_common_voice(tmp_path: Path) -> None:
    for name in ("one.mp3", "two.mp3"):
        sound(tmp_path / "clips" / name)
    header = "client_id\tpath\tsentence_id\tsentence\tup_votes"
    text(tmp_path / "train.tsv", header, 'c1\tone.mp3\tx\tHe said "no.\t2')
    text(tmp_path / "test.tsv", header, "c2\ttwo\tx\tÉtat\t2")
    found = imported("commonvoice", tmp_path, tmp_path / "out")
    assert [(split, row[:3]) for split, rows in found.items() for row in rows] == [
        ("train", ("one", 'He said "no.', "c1")),
        ("test", ("two", "État", "c2")),
    ]


def test_kaldi_with_segments_and_readers(tmp_path: Path) -> None:
    audio = sound(tmp_path / "audio" / "rec.flac", 2.0)
    for split in ("train", "test"):
        text(tmp_path / split / "wav.scp", f"rec flac -c -d -s {audio} |")
        text(tmp_path / split / "text", "u1 hello there", "u2 again")
        text(tmp_path / split / "utt2spk", "u1 anna", "u2 anna")
    text(tmp_path / "train" / "segments", "u1 rec 0.00 0.75", "u2 rec 0.75 2.0")
    text(tmp_path / "test" / "wav.scp", f"u1 {audio}", "u2 ../audio/rec.flac")
    assert imported("kaldi", tmp_path, tmp_path / "out") == {
        "test": [("u1", "hello there", "anna", 2.0), ("u2", "again", "anna", 2.0)],
        "train": [("u1", "hello there", "anna", 0.75), ("u2", "again", "anna", 1.25)],
    }
    assert set(imported("kaldi", tmp_path / "train", tmp_path / "one")) == {"train"}


def test_kaldi_runs_no_command_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    text(tmp_path / "wav.scp", f"u1 touch {marker} |", f"u2 {tmp_path}/gone.wav")
    text(tmp_path / "text", "u1 a", "u2 b", "u3 c")
    result = import_corpus("kaldi", tmp_path, tmp_path / "out")
    assert [problem.removeprefix(str(tmp_path)).split(";")[0] for problem in result.problems] == [
        "/wav.scp:1: the audio is a command, which is not run",
        f"/wav.scp:2: there is no {tmp_path}/gone.wav",
        "/text:3: u3 has no line in wav.scp",
    ]
    assert not marker.exists()


def test_nemo_and_nemo_tarred(tmp_path: Path) -> None:
    sound(tmp_path / "wavs" / "a.wav", 1.0)
    row = {"audio_filepath": "wavs/a.wav", "duration": 1.0, "text": "whole"}
    text(
        tmp_path / "plain.json",
        json.dumps(row),
        json.dumps({**row, "offset": 0.25, "duration": 0.5, "text": "part", "speaker": 7}),
    )
    with tarfile.open(tmp_path / "tarred" / "audio_0.tar" if (tmp_path / "tarred").mkdir() is None else "", "w") as tar:
        for name in ("one.flac", "two.flac"):
            content = sound(tmp_path / "source" / name, 0.5, seed=len(name)).read_bytes()
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    text(
        tmp_path / "tarred" / "tarred_audio_manifest.json",
        *(
            json.dumps({"audio_filepath": n, "duration": 0.5, "text": n[:3], "shard_id": 0})
            for n in ("two.flac", "one.flac")
        ),
    )
    assert imported("nemo", tmp_path / "plain.json", tmp_path / "a") == {
        "plain": [("wavs/a.wav", "whole", None, 1.0), ("wavs/a.wav@0.25", "part", "7", 0.5)]
    }
    assert imported("nemo", tmp_path / "tarred", tmp_path / "b") == {
        "tarred_audio_manifest": [("two.flac", "two", None, 0.5), ("one.flac", "one", None, 0.5)]
    }
    first = read_manifest(tmp_path / "b" / "tarred_audio_manifest.jsonl")[0]
    assert torch.equal(
        read_audio(first.audio_filepath, byte_span=first.byte_span), read_audio(tmp_path / "source" / "two.flac")
    )


@pytest.mark.filterwarnings("ignore")
def test_lhotse_cuts_and_shar(tmp_path: Path) -> None:
    lhotse = pytest.importorskip("lhotse")
    cuts = []
    for i in range(3):
        recording = lhotse.Recording.from_file(sound(tmp_path / f"{i}.wav", 1.0, seed=i))
        part = lhotse.SupervisionSegment(f"s{i}", recording.id, 0.0, 1.0, text=f"text {i}", speaker=f"speaker{i}")
        cuts.append(lhotse.MonoCut(f"cut{i}", 0.0, 1.0, 0, supervisions=[part], recording=recording))
    cuts[2] = cuts[2].truncate(offset=0.25, duration=0.5)
    whole = lhotse.CutSet.from_cuts(cuts)
    whole.to_file(tmp_path / "cuts.jsonl.gz")
    assert gzip.decompress((tmp_path / "cuts.jsonl.gz").read_bytes()).startswith(b"{")
    expected = [("text 0", "speaker0", 1.0), ("text 1", "speaker1", 1.0), ("text 2", "speaker2", 0.5)]
    found = imported("lhotse", tmp_path / "cuts.jsonl.gz", tmp_path / "a")
    assert [row[1:] for row in found["cuts"]] == expected
    (tmp_path / "shar").mkdir()
    whole.to_shar(tmp_path / "shar", fields={"recording": "wav"}, shard_size=2)
    found = imported("lhotse", tmp_path / "shar", tmp_path / "b")
    assert sorted(row[1:] for row in found["shar"]) == expected
    (read,) = [row for row in read_manifest(tmp_path / "b" / "shar.jsonl") if row.text == "text 1"]
    assert np.abs(read_audio(read.audio_filepath).numpy() - read_audio(tmp_path / "1.wav").numpy()).max() < 1e-4


def test_an4(tmp_path: Path) -> None:
    said = {"an251-fash-b": "YES", "an347-mnfe-b": "HELP", "an391-mjwl-b": "ENTER TWO"}
    for name in said:
        sound(tmp_path / "wav" / "an4" / name.split("-")[1] / f"{name}.sph")
    for split, names in (("train", list(said)[:2]), ("test", list(said)[2:])):
        text(tmp_path / "etc" / f"an4_{split}.fileids", *(f"an4/{name.split('-')[1]}/{name}" for name in names))
        text(tmp_path / "etc" / f"an4_{split}.transcription", *(f"<s> {said[name]} </s> ({name})" for name in names))
    assert imported("an4", tmp_path, tmp_path / "out") == {
        "train": [("an251-fash-b", "YES", "fash", 0.5)],
        "dev": [("an347-mnfe-b", "HELP", "mnfe", 0.5)],
        "test": [("an391-mjwl-b", "ENTER TWO", "mjwl", 0.5)],
    }


def test_fsdd(tmp_path: Path) -> None:
    for name in ("7_jackson_0", "7_jackson_5", "0_theo_49"):
        sound(tmp_path / "recordings" / f"{name}.wav")
    assert imported("fsdd", tmp_path, tmp_path / "out") == {
        "train": [("0_theo_49", "zero", "theo", 0.5)],
        "dev": [("7_jackson_5", "seven", "jackson", 0.5)],
        "test": [("7_jackson_0", "seven", "jackson", 0.5)],
    }


@pytest.mark.parametrize("kind", ["an4", "fsdd", "librispeech"])
def test_a_copy_that_brings_manifests_is_read_by_them(tmp_path: Path, kind: str) -> None:
    row = Utterance(sound(tmp_path / "audio" / "0_george_10.opus"), 0.5, "zero", "audio/0_george_10.opus", "george")
    write_manifest(tmp_path / "dev.jsonl", [row])
    assert imported(kind, tmp_path, tmp_path / "out") == {"dev": [("audio/0_george_10.opus", "zero", "george", 0.5)]}


def test_a_plain_folder(tmp_path: Path) -> None:
    text(sound(tmp_path / "c" / "train" / "x" / "a.FLAC".lower()).with_suffix(".txt"), "two\nlines ")
    text(sound(tmp_path / "c" / "test" / "b.wav").with_suffix(".txt"), "bee")
    sound(tmp_path / "c" / "test" / "no text.wav")
    found = imported("folder", tmp_path / "c", tmp_path / "out")
    assert found == {"test": [("test/b.wav", "bee", None, 0.5)], "train": [("train/x/a.flac", "two lines", None, 0.5)]}
    assert "no text.txt" in json.loads((tmp_path / "out" / "import.json").read_text())["problems"][0]


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_tables(tmp_path: Path, suffix: str, delimiter: str) -> None:
    sound(tmp_path / "a b.wav", 1.0)
    rows = [["path", "transcript", "speaker", "split", "start", "seconds"]]
    rows += [["a b.wav", '"one, two"', "s1", "dev", "", ""], ["a b.wav", "three", "", "test", "0.5", "0.25"]]
    text(tmp_path / f"table.{suffix}", *(delimiter.join(row) for row in rows))
    assert imported("csv", tmp_path / f"table.{suffix}", tmp_path / "out") == {
        "dev": [("a b.wav", "one, two", "s1", 1.0)],
        "test": [("a b.wav@0.5", "three", None, 0.25)],
    }


def test_unreadable_audio_is_named_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text(sound(tmp_path / "c" / "a.wav").with_suffix(".txt"), "A")
    text(tmp_path / "c" / "b.txt", "b")
    (tmp_path / "c" / "b.wav").write_bytes(b"not audio")
    assert main(["import", "folder", str(tmp_path / "c"), str(tmp_path / "out"), "--case", "lower"]) == 1
    output = capsys.readouterr()
    assert "b.wav: the audio cannot be read" in output.err
    assert "all.jsonl: 1 utterances, 0.000 h" in output.out
    assert [row.text for row in read_manifest(tmp_path / "out" / "all.jsonl")] == ["a"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_of_another_layout_is_a_sentence(tmp_path: Path, kind: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LayoutError, match=r"^\S+: no .*; name .*\.$"):
        import_corpus(kind, tmp_path / "empty", tmp_path / "out")
    with pytest.raises(LayoutError, match="there is no such file or folder"):
        import_corpus(kind, tmp_path / "gone", tmp_path / "out")
    with pytest.raises(LayoutError, match="is no kind of corpus"):
        import_corpus("timit", tmp_path, tmp_path / "out")


@pytest.mark.corpora
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "numbers"),
    [
        ("an4", "an4", (844, 52, 130)),
        ("fsdd", "fsdd", (2400, 300, 300)),
        ("librispeech", "librispeech-mini", (260, 30, 50)),
    ],
)
def test_real_corpora_are_imported_whole(
    corpora: Path, tmp_path: Path, kind: str, name: str, numbers: tuple[int, int, int]
) -> None:
    result = import_corpus(kind, corpora / name, tmp_path, normalizer=Normalizer())
    assert not result.problems
    rows = {path.stem: read_manifest(path) for path in result.manifests}
    assert tuple(len(rows[split]) for split in ("train", "dev", "test")) == numbers
    for split, imported_rows in rows.items():
        assert imported_rows == [
            Utterance(row.audio_filepath.resolve(), row.duration, row.text, row.id, row.speaker)
            for row in read_manifest(corpora.resolve() / name / f"{split}.jsonl")
        ]
