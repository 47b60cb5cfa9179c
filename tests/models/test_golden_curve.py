"""Twenty optimiser steps of a small recogniser, to the digit: a refactor reproduces them, a backend stays within their
budget.

One thread, float32, synthetic tensors. Where a change of the equations or of the initialisation is meant, print the new
losses with `python -m pytest tests/models/test_golden_curve.py -s` and put them here in the same commit, with the
reason in its message.
"""

import pytest
import torch

from data.batch import Batch, Example, collate
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.recipe import Recipe
from models.recognizer import Recognizer
from models.spec_augment import SpecAugmentOptions

GOLDEN = [
    41.129013,
    43.424767,
    38.120651,
    38.679718,
    34.073326,
    33.826157,
    32.702530,
    30.283413,
    28.732903,
    26.655277,
    21.492525,
    32.265442,
    21.686111,
    17.826790,
    20.828016,
    17.421831,
    15.440874,
    15.634124,
    20.218349,
    15.066548,
]


def batches() -> list[Batch]:
    """Tones whose pitch tells the token, each 80 ms, under noise; made from float64 sines, so alike on every
    machine."""
    made = []
    for step in range(20):
        examples = []
        for row in range(4):
            tokens = [1 + (step * 7 + row * 5 + 3 * i) % 6 for i in range(4 + (step + row) % 5)]
            time = torch.arange(1280, dtype=torch.float64) / 16_000
            pieces = [torch.sin(2 * torch.pi * (300 + 400 * token) * time) for token in tokens]
            dither = torch.sin(torch.arange(1280 * len(tokens), dtype=torch.float64).square() * (0.1 + 0.01 * row))
            audio = (0.3 * torch.cat(pieces) + 0.02 * dither).float()
            examples.append(Example(audio, torch.tensor(tokens), f"{step}-{row}"))
        made.append(collate(examples))
    return made


def curve() -> list[float]:
    """The mean loss of each step."""
    torch.manual_seed(7)
    model = Recognizer(
        num_layers=5,
        hidden_size=24,
        module_layers=2,
        skip_span=2,
        row_convolution="per_module",
        future_frames=6,
        characters=" abcde",
        features=FeatureOptions(kind="log_mel", mel_bins=24),
        front_end=FrontEndOptions(4, (9, 5), (2, 2), (5, 5), (2, 1)),
        spec_augment=SpecAugmentOptions(frequency_width=4, time_width=6),
        recipe=Recipe(learning_rate=3e-3, schedule="constant", warmup_share=0.0),
    ).train()
    given = batches()
    model.network.features.estimate((b.audio, b.audio_lengths) for b in given)
    optimizer = model.recipe.optimizer_for(model)
    losses = []
    for batch in given:
        loss = model.losses(batch).total / batch.step_utterances
        loss.backward()
        assert model.gradient_norm.apply(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_twenty_steps() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        losses = curve()
    finally:
        torch.set_num_threads(threads)
    print("\nGOLDEN = [" + ", ".join(f"{loss:.6f}" for loss in losses) + "]")
    assert losses[:5] == pytest.approx(GOLDEN[:5], rel=1e-4)
    # In between, rounding grows; the tolerance grows with it, evenly on a log scale.
    for step in range(5, 20):
        assert losses[step] == pytest.approx(GOLDEN[step], rel=1e-4 * 100 ** ((step - 4) / 15))
    assert losses[-1] < 0.7 * losses[0]
