"""The gradient noise scale: without bias on gradients whose noise is known, and on a real network's."""

import math
import random

import pytest

from data.batch import Batch
from experiments.batch_size.noise_scale import estimate, group, squared_norm
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.recognizer import Recognizer
from models.spec_augment import SpecAugmentOptions


def draw(random_: random.Random, signal: float, noise: float, small: int, count: int) -> tuple[float, float]:
    """(mean |g|^2, |G|^2) of gradients in 50 dimensions: their mean is `signal` long, an utterance's covariance has
    trace `noise`."""
    dimensions = 50
    mean = [signal / math.sqrt(dimensions)] * dimensions
    deviation = math.sqrt(noise / dimensions / small)
    gradients = [[m + random_.gauss(0, deviation) for m in mean] for _ in range(count)]
    big = [sum(column) / count for column in zip(*gradients, strict=True)]
    return sum(sum(x * x for x in g) for g in gradients) / count, sum(x * x for x in big)


def test_known_noise_is_found_within_its_interval() -> None:
    random_ = random.Random(0)
    pairs = [draw(random_, signal=2.0, noise=100.0, small=4, count=8) for _ in range(400)]
    found = estimate(pairs, 4, 32)
    assert found.signal == pytest.approx(4.0, rel=0.05)
    assert found.noise == pytest.approx(100.0, rel=0.05)
    assert found.noise_scale is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < 25.0 < found.high
    assert found.high - found.low < 5


def test_noise_alone_is_not_measurable_rather_than_negative() -> None:
    found = estimate([(4.0, 0.4)], 4, 32)
    assert found.signal < 0
    assert found.noise_scale is None
    assert found.low is None


def test_equal_gradients_have_no_noise() -> None:
    assert estimate([(9.0, 9.0)] * 3, 4, 32).noise_scale == 0.0


def test_the_big_batch_is_the_bigger() -> None:
    with pytest.raises(ValueError, match="A big batch of 4 is not above the small one of 4"):
        estimate([(1.0, 1.0)], 4, 4)


def test_a_group_of_one_and_the_same_batch_has_its_gradient() -> None:
    import torch

    torch.manual_seed(0)
    recognizer = Recognizer(
        num_layers=1,
        hidden_size=8,
        features=FeatureOptions(kind="log_mel", mel_bins=20, normalization="utterance"),
        front_end=FrontEndOptions(channels=2, first_kernel=(5, 5), second_kernel=(5, 3)),
        spec_augment=SpecAugmentOptions(frequency_masks=0, time_masks=0),
    ).train()
    lengths = torch.tensor([8000, 6000])
    tokens = torch.tensor([[3, 4, 5], [6, 7, 0]])
    audio = 0.1 * torch.randn(2, 8000)
    audio[1, 6000:] = 0
    batch = Batch(audio, lengths, tokens, torch.tensor([3, 2]), ["a", "b"], 0, 2)
    found = group(recognizer, [batch] * 3, 3, "cpu")
    assert found is not None
    small, big = found
    assert small == pytest.approx(big, rel=1e-4)
    recognizer.zero_grad()
    (recognizer.losses(batch).total / 2).backward()
    exact = squared_norm(p.grad for p in recognizer.parameters() if p.grad is not None)
    assert small == pytest.approx(exact, rel=1e-4)
    assert group(recognizer, [batch], 2, "cpu") is None
