"""CTC: what can be aligned, against counting all alignments, and losses that stay finite."""

import itertools
import math

import pytest
import torch

from models.ctc import CTCHead, alignable, ctc_losses, required_frames
from models.frames import Frames


def ids(text: str) -> list[int]:
    return [" abc".index(c) + 1 for c in text]


@pytest.mark.parametrize(
    ("text", "frames"), [("", 0), ("a", 1), ("ab", 2), ("aa", 3), ("aab", 4), ("aaa", 5), ("abab", 4), ("aabb", 6)]
)
def test_frames_that_a_transcript_needs(text: str, frames: int) -> None:
    # Behind the length the batch's padding repeats: it must not count.
    tokens = torch.tensor([ids(text) + [0] * (6 - len(text))])
    length = torch.tensor([len(text)])
    assert required_frames(tokens, length).item() == frames
    for given in range(1, 8):
        assert alignable(tokens, length, torch.tensor([given])).item() == (given >= frames)
        log_probs = torch.zeros(1, 8, 5).log_softmax(-1)
        loss = ctc_losses(log_probs, torch.tensor([given]), tokens, length)
        assert torch.isfinite(loss).item() == (given >= frames)


def test_loss_counts_every_alignment() -> None:
    log_probs = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    for target in ([], [1], [1, 2], [1, 1], [2, 2], [1, 2, 1]):
        total = 0.0
        for path in itertools.product(range(3), repeat=4):
            merged = [token for token, _ in itertools.groupby(path) if token]
            if merged == target:
                total += math.exp(sum(log_probs[0, t, token].item() for t, token in enumerate(path)))
        loss = ctc_losses(
            log_probs, torch.tensor([4]), torch.tensor([target], dtype=torch.int64), torch.tensor([len(target)])
        )
        assert loss.item() == pytest.approx(-math.log(total), rel=1e-4)


def test_an_empty_transcript_costs_its_blanks() -> None:
    log_probs = torch.randn(2, 5, 3).log_softmax(-1)
    no_tokens = torch.zeros(2, 0, dtype=torch.int64)
    losses = ctc_losses(log_probs, torch.tensor([5, 3]), no_tokens, torch.tensor([0, 0]))
    torch.testing.assert_close(losses, torch.stack([-log_probs[0, :, 0].sum(), -log_probs[1, :3, 0].sum()]))


def test_an_absent_utterance_costs_nothing() -> None:
    log_probs = torch.randn(2, 5, 3, requires_grad=True)
    losses = ctc_losses(
        log_probs.log_softmax(-1), torch.tensor([5, 0]), torch.tensor([[1, 2], [0, 0]]), torch.tensor([2, 0])
    )
    assert losses[1].item() == 0
    losses.sum().backward()
    assert (log_probs.grad[1] == 0).all()
    assert (log_probs.grad[0] != 0).any()


def test_log_softmax_and_loss_are_float32_under_autocast() -> None:
    torch.manual_seed(0)
    head = CTCHead(8, 5)
    with torch.autocast("cpu", torch.bfloat16):
        log_probs = head(torch.randn(6, 2, 8), Frames.of(torch.tensor([6, 4]), 6)).transpose(0, 1)
        losses = ctc_losses(log_probs, torch.tensor([6, 4]), torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
    assert log_probs.dtype == losses.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 6), rtol=1e-5, atol=1e-5)


def test_head_normalises_its_input_and_not_its_logits() -> None:
    head = CTCHead(8, 5)
    assert head.norm is not None
    assert head.norm.weight.shape == (8,)
    assert head.linear.weight.shape == (5, 8)
    assert sum(p.numel() for p in head.parameters()) == 8 * 2 + 8 * 5 + 5
