"""The normaliser and the vocabulary: nothing is dropped silently, blank and space are reserved."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.text import Normalizer
from data.vocabulary import Vocabulary, VocabularyError


def test_unicode_form_apostrophes_and_white_space_are_normalised() -> None:
    keep = Normalizer()
    assert keep("  cafe\u0301\tau  lait\n") == "café au lait"
    assert keep("don\u2019t") == "don't"
    assert keep("Hello, World 23") == "Hello, World 23"
    assert keep("") == ""


def test_case_and_punctuation_are_policies() -> None:
    assert Normalizer(case="lower")("HELLO İ") == "hello i̇"
    assert Normalizer(punctuation="remove")("well-known, isn't it? (23)") == "well known isn't it 23"


@given(
    st.text(), st.sampled_from(["keep", "lower"]), st.sampled_from(["keep", "remove"]), st.sampled_from(["NFC", "NFKC"])
)
def test_normalising_twice_changes_nothing_more(text: str, case: str, punctuation: str, form: str) -> None:
    normalizer = Normalizer(form, case, punctuation)
    once = normalizer(text)
    assert normalizer(once) == once


def test_the_default_has_29_tokens_and_blank_is_zero() -> None:
    vocabulary = Vocabulary.load(None)
    assert len(vocabulary) == 29
    assert vocabulary.blank == 0
    assert vocabulary.encode(" 'az") == [1, 2, 3, 28]
    assert vocabulary.decode([0, 3, 0, 0, 28, 1]) == "az "


@given(st.text(alphabet=Vocabulary().characters))
def test_decode_is_the_inverse_of_encode(text: str) -> None:
    vocabulary = Vocabulary()
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_unknown_characters_are_named_with_counts_and_an_example() -> None:
    with pytest.raises(VocabularyError) as caught:
        Vocabulary().encode("naïve ïdea 5")
    assert "'ï' (2x)" in str(caught.value)
    assert "'5' (1x)" in str(caught.value)
    assert "naïve" in str(caught.value)
    assert "data vocabulary" in str(caught.value)


def test_upper_case_against_a_lower_case_vocabulary_says_so() -> None:
    with pytest.raises(VocabularyError, match="set text_case to lower"):
        Vocabulary().encode("HELLO")
    assert "set text_case" not in Vocabulary().complaint(["HELLO 5"])


def test_a_file_is_read_back_whatever_its_characters(tmp_path: Path) -> None:
    vocabulary = Vocabulary.of_texts(["c'est l'été", "#1 \u2028"])
    path = tmp_path / "v.txt"
    vocabulary.save(path)
    assert path.read_text(encoding="utf-8").splitlines()[:2] == ["<blank>", "<space>"]
    assert Vocabulary.load(path) == vocabulary
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Vocabulary.load(path) == vocabulary


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("a\nb\n", ":1: the first line is 'a'; it must be <blank>"),
        ("<blank>\na\na\n", ":3: 'a' is there twice"),
        ("<blank>\nab\n", ":2: 'ab' is not one character"),
        ("<blank>\n", "not one character|empty"),
        ("", "the first line"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(VocabularyError, match=named) as caught:
        Vocabulary.load(tmp_path / "v.txt")
    assert str(tmp_path / "v.txt") in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="cannot be read"):
        Vocabulary.load(tmp_path / "v.txt")
