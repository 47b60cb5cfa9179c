"""Collating: ragged lengths, any order, nothing at all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.utilities import move_data_to_device

from data.batch import Batch, Example, collate


def example(samples: int, tokens: int, name: str = "u") -> Example:
    return Example(torch.rand(samples) - 0.5, torch.randint(1, 29, (tokens,)), name)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=6))
def test_an_example_is_found_again_in_its_row_and_the_rest_is_zero(lengths: list[tuple[int, int]]) -> None:
    examples = [example(samples, tokens, str(i)) for i, (samples, tokens) in enumerate(lengths)]
    batch = collate(examples, epoch=3, step_utterances=17)
    assert (batch.epoch, batch.step_utterances, len(batch)) == (3, 17, len(examples))
    assert batch.utterance_ids == [e.utterance_id for e in examples]
    assert batch.audio_lengths.tolist() == [samples for samples, _ in lengths]
    assert batch.token_lengths.tolist() == [tokens for _, tokens in lengths]
    assert batch.audio_lengths.dtype == batch.token_lengths.dtype == batch.tokens.dtype == torch.int64
    for i, e in enumerate(examples):
        assert torch.equal(batch.audio[i, : len(e.audio)], e.audio)
        assert not batch.audio[i, len(e.audio) :].any()
        assert torch.equal(batch.tokens[i, : len(e.tokens)], e.tokens)
        assert not batch.tokens[i, len(e.tokens) :].any()


def test_a_batch_of_nothing_has_shapes() -> None:
    batch = collate([], step_utterances=4)
    assert batch.audio.shape == batch.tokens.shape == (0, 0)
    assert batch.audio_lengths.shape == batch.token_lengths.shape == (0,)
    assert (len(batch), batch.step_utterances) == (0, 4)


def test_the_step_is_the_batch_where_nothing_else_is_said() -> None:
    assert collate([example(3, 1), example(5, 0)]).step_utterances == 2


def test_an_example_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="third: no samples"):
        collate([example(3, 1), example(0, 1, "third")])


def test_lightning_moves_it() -> None:
    batch = collate([example(3, 1), example(5, 0)], epoch=2)
    moved = move_data_to_device(batch, torch.device("meta"))
    assert isinstance(moved, Batch)
    assert {t.device.type for t in (moved.audio, moved.audio_lengths, moved.tokens, moved.token_lengths)} == {"meta"}
    assert (moved.utterance_ids, moved.epoch) == (batch.utterance_ids, 2)
    halved = apply_to_collection(batch, torch.Tensor, lambda t: t.half() if t.is_floating_point() else t)
    assert halved.audio.dtype == torch.float16
