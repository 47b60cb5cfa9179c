"""Sub-word units: sentencepiece's own cut of a text, lossless, carried by a file and by one string."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st

from data import sentences
from data.__main__ import main
from data.corpus import ManifestCorpus
from data.index import IndexedCorpus
from data.index_writer import write_rows
from data.manifest import Utterance, write_manifest
from data.subwords import scores_of, segment, train
from data.text import Normalizer
from data.vocabulary import Vocabulary, VocabularyError
from models.decoding import greedy

TEXTS = [sentences.sentence(np.random.default_rng(i)) for i in range(400)]


@pytest.fixture(scope="module")
def units() -> Vocabulary:
    return Vocabulary(train(TEXTS, 150))


def test_the_cut_is_that_of_sentencepiece(units: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[bytes] = []
    trainer: Any = sentencepiece.SentencePieceTrainer.train

    def keep(**options: Any) -> None:
        trainer(**options)
        writer: io.BytesIO = options["model_writer"]
        models.append(writer.getvalue())

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", keep)
    assert train(TEXTS, 150) == units.characters
    processor = sentencepiece.SentencePieceProcessor(model_proto=models[0])
    for text in TEXTS[:100]:
        pieces = [piece.replace("\u2581", " ") for piece in processor.encode(text, out_type=str)]
        ours = [units.units[token - 1] for token in units.encode(text)]
        assert (
            sum(scores_of(units.characters)[p] for p in ours)
            >= sum(scores_of(units.characters)[p] for p in pieces) - 1e-4
        )
        assert len(ours) == len(pieces)


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz ", max_size=40))
def test_decode_is_the_inverse_of_encode(text: str) -> None:
    units = Vocabulary(
        "\n".join([*(f"{c}\t-5" for c in "abcdefghijklmnopqrstuvwxyz "), " the\t-2", "ing\t-3", "q u\t-1"])
    )
    assert units.decode(units.encode(text)) == text
    assert 0 not in units.encode(text)


def test_the_best_cut_is_taken() -> None:
    scores = {"a": -1.0, "b": -1.0, "ab": -1.5, "aba": -4.0}
    assert segment("abab", scores) == ["ab", "ab"]
    assert segment("", scores) == []
    with pytest.raises(KeyError):
        segment("abc", scores)


def test_file_and_string_carry_it(units: Vocabulary, tmp_path: Path) -> None:
    units.save(tmp_path / "u.txt")
    loaded = Vocabulary.load(tmp_path / "u.txt")
    assert loaded == units == Vocabulary(units.characters)
    assert loaded.encode(TEXTS[0]) == units.encode(TEXTS[0])
    assert len(units) == 151
    assert units.has_subwords
    assert not Vocabulary().has_subwords
    assert max(map(len, units.units)) > 1


def test_characters_outside_are_named(units: Vocabulary) -> None:
    with pytest.raises(VocabularyError, match=r"'5' \(1x\)"):
        units.encode("the 5 dogs")


def test_the_command_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Utterance(tmp_path / f"{i}", 1.0, text, f"{i}") for i, text in enumerate(TEXTS)]
    write_manifest(tmp_path / "m.jsonl", rows)
    command = ["vocabulary", str(tmp_path / "m.jsonl"), "--output", str(tmp_path / "u.txt"), "--units"]
    assert main([*command, "150"]) == 0
    assert Vocabulary.load(tmp_path / "u.txt") == Vocabulary(train(TEXTS, 150))
    assert main([*command, "100000"]) == 2
    assert "ask for fewer" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["the", "the\tx", "\t-1", "the\tnan", "a\t-1"])
def test_bad_lines_are_named(line: str) -> None:
    with pytest.raises(VocabularyError, match="is not a new piece, a tab and its score"):
        Vocabulary(f"a\t-1\n{line}")


def test_an_index_counts_frames_in_units(units: Vocabulary, tmp_path: Path) -> None:
    rows = [Utterance(tmp_path / f"{i}", 1.0, text, f"{i}") for i, text in enumerate(TEXTS[:20])]
    write_rows(tmp_path / "i.arrow", rows)
    indexed, plain = IndexedCorpus(tmp_path / "i.arrow"), ManifestCorpus(rows)
    policy = (units, Normalizer())
    assert np.array_equal(indexed.frames_needed(*policy), plain.frames_needed(*policy))
    assert indexed.frames_needed(*policy).sum() < indexed.frames_needed(Vocabulary(), Normalizer()).sum()


def test_words_are_heard_from_units() -> None:
    units = ("he", "llo", " wor", "ld", " ", "a b")
    tokens = [1, 0, 2, 3, 4, 4, 5, 6, 0]
    log_probs = torch.nn.functional.one_hot(torch.tensor([tokens]), 7).float().log().clamp(min=-50.0)
    (heard,) = greedy(log_probs, torch.tensor([len(tokens)]), units)
    assert heard.text == "hello world a b"
    assert [(word.text, word.start, word.end) for word in heard.words][:2] == [("hello", 0.0, 3.0), ("world", 3.0, 6.0)]
