"""WER and CER: integers summed over a data set, each utterance once."""

import pytest

from models.error_rate import ErrorCounts, ErrorRate


def count(*pairs: tuple[str, str]) -> ErrorCounts:
    rate = ErrorRate()
    for i, (hypothesis, reference) in enumerate(pairs):
        rate.update(f"u{i}", hypothesis, reference)
    return rate.compute()


@pytest.mark.parametrize(
    ("hypothesis", "reference", "errors", "words"),
    [
        ("a b c", "a b c", 0, 3),
        ("a x c", "a b c", 1, 3),
        ("a c", "a b c", 1, 3),
        ("a b b c", "a b c", 1, 3),
        ("", "a b c", 3, 3),
        ("a b", "", 2, 0),
        ("", "", 0, 0),
        ("ab c", "a bc", 2, 2),
        ("  a   b ", "a b", 0, 2),
    ],
)
def test_word_errors(hypothesis: str, reference: str, errors: int, words: int) -> None:
    counts = count((hypothesis, reference))
    assert (counts.errors, counts.words) == (errors, words)


def test_character_errors_count_spaces() -> None:
    counts = count(("ab c", "a bc"))
    assert (counts.character_errors, counts.characters) == (2, 4)


def test_totals_are_not_means_of_utterances() -> None:
    counts = count(("x", "a"), ("a b c d e f g h i", "a b c d e f g h i"))
    assert counts.wer == pytest.approx(1 / 10)
    assert counts.utterances == 2


def test_an_utterance_counts_once_and_empty_references_insert() -> None:
    rate = ErrorRate()
    rate.update("u", "x", "a")
    rate.update("u", "x", "a")
    rate.update("silence", "a b", "")
    counts = rate.compute()
    assert (counts.errors, counts.words, counts.utterances) == (3, 1, 2)
    assert counts.wer == 3
    rate.clear()
    assert rate.compute() == ErrorCounts()
    assert ErrorCounts().wer == ErrorCounts().cer == 0
