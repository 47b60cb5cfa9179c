"""Greedy decoding: runs merged, blanks dropped, times, nothing from the padding."""

import torch

from models.decoding import Span, greedy

CHARACTERS = " abc"


def posteriors(*rows: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Peaked log-probabilities of rows such as "a__bb "; "_" is the blank."""
    frames = max(map(len, rows))
    log_probs = torch.full((len(rows), frames, 5), -10.0)
    for b, row in enumerate(rows):
        for t, c in enumerate(row):
            log_probs[b, t, "_ abc".index(c)] = -0.5
    return log_probs, torch.tensor([len(row) for row in rows])


def test_runs_and_blanks() -> None:
    texts = [h.text for h in greedy(*posteriors("aab", "a_a", "_aa_", "____", "a  b", "abcabc"), CHARACTERS)]
    assert texts == ["ab", "aa", "a", "", "a b", "abcabc"]


def test_spaces_at_the_ends_and_doubled_are_one_word_boundary() -> None:
    assert greedy(*posteriors(" a _ b "), CHARACTERS)[0].text == "a b"


def test_the_padding_is_never_decoded() -> None:
    log_probs, _ = posteriors("abcabc", "cccccc")
    hypotheses = greedy(log_probs, torch.tensor([2, 0]), CHARACTERS)
    assert [h.text for h in hypotheses] == ["ab", ""]
    assert [h.score for h in hypotheses] == [-1.0, 0.0]


def test_times_of_characters_and_words() -> None:
    log_probs, lengths = posteriors("__aab_ c")
    hypothesis = greedy(log_probs, lengths, CHARACTERS, seconds_per_frame=0.5, lead_seconds=1.0)[0]
    assert hypothesis.characters == [
        Span("a", 0.0, 1.0),
        Span("b", 1.0, 1.5),
        Span(" ", 2.0, 2.5),
        Span("c", 2.5, 3.0),
    ]
    assert hypothesis.words == [Span("ab", 0.0, 1.5), Span("c", 2.5, 3.0)]


def test_times_never_come_before_the_audio() -> None:
    log_probs, lengths = posteriors("a_b")
    hypothesis = greedy(log_probs, lengths, CHARACTERS, seconds_per_frame=0.02, lead_seconds=0.1)[0]
    assert hypothesis.characters[0] == Span("a", 0.0, 0.0)


def test_what_is_heard_in_the_padding_is_heard_at_the_audios_edge() -> None:
    log_probs, lengths = posteriors("aa__bb")
    (heard,) = greedy(log_probs, lengths, CHARACTERS, seconds_per_frame=0.5, lead_seconds=0.75, audio_seconds=[1.5])
    assert [(span.text, span.start, span.end) for span in heard.characters] == [("a", 0.0, 0.25), ("b", 1.25, 1.5)]
