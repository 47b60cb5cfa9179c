"""The embedded corpus: a function of its seed, speakers disjoint, nothing overwritten, a killed one goes on."""

import hashlib
import json
import string
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data import sentences, synth
from data.audio import read_audio
from data.manifest import read_manifest
from data.synth import Options, SynthError, speakers_of, synthesize
from data.vocabulary import Vocabulary

SMALL = Options(hours=0.002, speakers=3)


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_seed_gives_the_same_bytes_for_any_number_of_processes(tmp_path: Path) -> None:
    one = contents(synthesize(tmp_path / "one", SMALL, jobs=1))
    two = contents(synthesize(tmp_path / "two", SMALL, jobs=2))
    assert one == two
    assert {"corpus.json", "train.jsonl", "dev.jsonl", "test.jsonl"} == {name for name in one if "/" not in name}
    other = contents(synthesize(tmp_path / "other", Options(hours=0.002, speakers=3, seed=1), jobs=1))
    assert other["train.jsonl"] != one["train.jsonl"]


def test_the_corpus_is_what_its_options_say(synth_corpus: Path) -> None:
    seconds = 0.0
    speakers: list[set[str | None]] = []
    for split in ("train", "dev", "test"):
        rows = read_manifest(synth_corpus / f"{split}.jsonl")
        seconds += sum(row.duration for row in rows)
        speakers.append({row.speaker for row in rows})
        for row in rows:
            assert set(row.text.split()) <= set(sentences.DIGITS)
            assert soundfile.info(row.audio_filepath).samplerate == 16000
            assert len(read_audio(row.audio_filepath)) == round(row.duration * 16000)
            assert row.id == str(row.audio_filepath.relative_to(synth_corpus))
    assert [len(of_split) for of_split in speakers] == [4, 1, 1]
    assert len(set.union(*speakers)) == 6
    assert 90 <= seconds <= 90 + 6 * 5
    assert json.loads((synth_corpus / "corpus.json").read_text())["seed"] == 0


def test_no_voice_is_in_two_splits() -> None:
    speakers = speakers_of(Options(speakers=200))
    assert len({speaker.voice.name for speaker in speakers}) == 200
    assert len({speaker.id for speaker in speakers}) == 200
    assert {split: sum(s.split == split for s in speakers) for split in ("train", "dev", "test")} == {
        "train": 160,
        "dev": 20,
        "test": 20,
    }


def test_utterances_are_neither_clipped_nor_trivially_clean(synth_corpus: Path) -> None:
    for row in read_manifest(synth_corpus / "dev.jsonl"):
        audio = read_audio(row.audio_filepath).numpy()
        assert 0.02 < np.abs(audio).max() < 0.9
        assert np.abs(audio[:400]).std() > 0


def test_texts_fit_the_default_vocabulary() -> None:
    random = np.random.default_rng(0)
    texts = [sentences.sentence(random) for _ in range(300)] + [sentences.digits(random) for _ in range(50)]
    assert not Vocabulary().complaint(texts)
    assert len(set(texts)) > 300
    assert set("".join(texts)) <= set(string.ascii_lowercase + " '")
    assert all(text == " ".join(text.split()) for text in texts)
    lengths = [len(text.split()) for text in texts]
    assert (min(lengths), max(lengths) >= 12) == (1, True)


def test_words_of_ones_own_are_what_is_said(tmp_path: Path) -> None:
    out = synthesize(tmp_path / "c", Options(hours=0.001, speakers=3, words=("yes", "no")), jobs=1)
    said = {
        word
        for split in ("train", "dev", "test")
        for row in read_manifest(out / f"{split}.jsonl")
        for word in row.text.split()
    }
    assert said <= {"yes", "no"}


def test_a_second_call_finds_the_corpus_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthesize(tmp_path / "c", SMALL, jobs=1)
    before = contents(tmp_path / "c")
    monkeypatch.setattr(synth, "_speak_all", lambda *_: pytest.fail("spoke again"))
    synthesize(tmp_path / "c", SMALL, jobs=1)
    assert contents(tmp_path / "c") == before


def test_a_killed_call_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(synthesize(tmp_path / "whole", SMALL, jobs=1))
    speak, spoken = synth._speak_all, []

    def speak_once(speaker: synth.Speaker, out: Path, options: Options) -> None:
        if spoken:
            raise KeyboardInterrupt
        spoken.append(speaker.id)
        speak(speaker, out, options)

    monkeypatch.setattr(synth, "_speak_all", speak_once)
    with pytest.raises(KeyboardInterrupt):
        synthesize(tmp_path / "c", SMALL, jobs=1)
    assert not (tmp_path / "c" / "train.jsonl").exists()
    monkeypatch.setattr(
        synth, "_speak_all", lambda s, *rest: speak(s, *rest) if s.id not in spoken else pytest.fail("spoke again")
    )
    assert contents(synthesize(tmp_path / "c", SMALL, jobs=1)) == whole


def test_other_files_and_other_corpora_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SynthError, match="is not empty and holds no corpus"):
        synthesize(tmp_path, SMALL, jobs=1)
    synthesize(tmp_path / "c", SMALL, jobs=1)
    with pytest.raises(SynthError, match=r"holds a corpus with seed=0; name another folder"):
        synthesize(tmp_path / "c", Options(hours=0.002, speakers=3, seed=1), jobs=1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"hours": 0}, "hours is 0"),
        ({"hours": float("nan")}, "hours is nan"),
        ({"speakers": 2}, "speakers is 2"),
        ({"speakers": 10**6}, "speakers is 1000000"),
        ({"splits": (("a", 1.0), ("a", 1.0))}, "names a split twice"),
        ({"splits": (("a", 0.0),)}, "above zero"),
    ],
)
def test_options_that_make_no_corpus_are_refused(options: dict, named: str) -> None:
    with pytest.raises(SynthError, match=named):
        Options(**options)
