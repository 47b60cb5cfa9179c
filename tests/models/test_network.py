"""The whole network: padding never speaks, lengths are exact, batch-mates do not matter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from data.batch import Batch
from models.front_end import FrontEndOptions
from models.recognizer import Recognizer

SAMPLES = (9000, 4000, 6500, 1)


def widened(batch: Batch, samples: int) -> Batch:
    audio = torch.nn.functional.pad(batch.audio, (0, samples))
    return Batch(audio, batch.audio_lengths, batch.tokens, batch.token_lengths, batch.utterance_ids, 0, 4)


@pytest.mark.parametrize("normalization", ["batch", "none"])
@pytest.mark.parametrize("extra_frames", [7, 100])
def test_training_does_not_hear_padding(
    recognizer: Callable[..., Recognizer], batch: Callable[..., Batch], normalization: str, extra_frames: int
) -> None:
    given = batch(*((samples, [1, 2, 3]) for samples in SAMPLES))

    def run(batch: Batch) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        model = recognizer(normalization=normalization, num_layers=4, module_layers=2, future_frames=6).train()
        result = model.losses(batch)
        result.total.backward()
        valid = [row[:end] for row, end in zip(result.log_probs, result.lengths.tolist(), strict=True)]
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return valid, list(model.buffers()), gradients

    for now, before in zip(run(widened(given, 160 * extra_frames)), run(given), strict=True):
        for a, b in zip(now, before, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 16])
def test_evaluation_is_the_same_in_any_batch_and_order(
    recognizer: Callable[..., Recognizer], batch: Callable[..., Batch], size: int
) -> None:
    model = recognizer(num_layers=4, module_layers=2).train()
    utterances = [(400 + 777 * i, [1]) for i in range(16)]
    everyone = batch(*utterances)
    model.losses(everyone)  # running statistics that are not the initial ones
    model.eval()
    alone = []
    for i, utterance in enumerate(utterances):
        one = batch(utterance, first=i)
        alone.append(model(one.audio, one.audio_lengths))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(size)).split(size)
    for rows in order:
        log_probs, lengths = model(everyone.audio[rows], everyone.audio_lengths[rows])
        for row, out, end in zip(rows.tolist(), log_probs, lengths.tolist(), strict=True):
            assert end == alone[row][1].item()
            torch.testing.assert_close(out[:end], alone[row][0][0], rtol=1e-3, atol=1e-4)
            text = model.transcribe(everyone.audio[row : row + 1], everyone.audio_lengths[row : row + 1])[0].text
            assert (
                text
                == model.transcribe(everyone.audio[rows], everyone.audio_lengths[rows])[rows.tolist().index(row)].text
            )


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_predicted_length_is_actual_length(recognizer: Callable[..., Recognizer], strides: tuple[int, int]) -> None:
    options = FrontEndOptions(1, (3, 3), (4, strides[0]), (3, 3), (4, strides[1]))
    model = recognizer(num_layers=1, hidden_size=4, front_end=options).eval()
    samples = torch.arange(1, 401) * 40
    predicted = model.output_lengths(samples)
    _, actual = model(torch.zeros(400, 16_000), samples)
    assert torch.equal(predicted, actual)
    for samples_alone in (1, 159, 160, 161, 3333):
        log_probs, lengths = model(torch.zeros(1, samples_alone), torch.tensor([samples_alone]))
        assert log_probs.shape[1] == lengths.item() == model.output_lengths(torch.tensor([samples_alone])).item()


@pytest.mark.parametrize("normalization", ["batch", "none"])
def test_an_utterance_that_cannot_be_aligned_leaves_its_batch_mates_alone(
    recognizer: Callable[..., Recognizer], batch: Callable[..., Batch], normalization: str
) -> None:
    good = [(9000, [1, 2]), (5000, [2])]
    gradients, buffers, losses = [], [], []
    for utterances in (good, [*good, (400, [1] * 60)]):
        model = recognizer(normalization=normalization).train()
        result = model.losses(batch(*utterances))
        result.total.backward()
        assert result.usable.tolist() == [True, True, False][: len(utterances)]
        losses.append(result.total.detach())
        gradients.append([p.grad for p in model.parameters()])
        buffers.append(list(model.buffers()))
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(buffers[0], buffers[1])


@pytest.mark.parametrize("utterances", [[(400, [1] * 60)], []])
def test_a_rank_left_empty_touches_every_parameter_with_zero(
    recognizer: Callable[..., Recognizer], batch: Callable[..., Batch], utterances: list[tuple[int, list[int]]]
) -> None:
    model = recognizer(num_layers=4).train()
    before = [b.clone() for b in model.buffers()]
    result = model.losses(batch(*utterances))
    result.total.backward()
    assert result.total.item() == 0
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert (p.grad == 0).all(), name
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before, strict=True))


def test_empty_transcripts_are_legal(recognizer: Callable[..., Recognizer], batch: Callable[..., Batch]) -> None:
    result = recognizer().train().losses(batch((5000, []), (4000, [])))
    assert result.usable.all()
    blanks = sum(-row[:end, 0].sum() for row, end in zip(result.log_probs, result.lengths.tolist(), strict=True))
    torch.testing.assert_close(result.total, blanks)


def test_bfloat16_network_and_autocast_stay_close(
    recognizer: Callable[..., Recognizer], batch: Callable[..., Batch]
) -> None:
    given = batch((9000, [1, 2]), (4000, [3]))
    exact = recognizer().train().losses(given)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = recognizer().train().losses(given)
    low = recognizer().to(torch.bfloat16).train().losses(given)
    for result in (mixed, low):
        assert result.total.dtype == result.log_probs.dtype == torch.float32
        assert result.total.item() == pytest.approx(exact.total.item(), rel=0.03)
        result.total.backward()


def test_the_papers_deepest_network_has_its_parameters() -> None:
    with torch.device("meta"):
        model = Recognizer(num_layers=88, hidden_size=1152, row_convolution="ten")
    assert model.num_parameters / 1e6 == pytest.approx(234.3, rel=0.002)
    with torch.device("meta"):
        assert Recognizer(num_layers=8).num_parameters / 1e6 == pytest.approx(22, rel=0.02)


@pytest.mark.slow
def test_the_papers_deepest_network_trains_on_a_cpu(batch: Callable[..., Batch]) -> None:
    torch.manual_seed(0)
    model = Recognizer(num_layers=88, hidden_size=1152, row_convolution="ten").train()
    result = model.losses(batch((8000, [1, 2])))
    result.total.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name
