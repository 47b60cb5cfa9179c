"""Small recognisers and ragged batches of noise for the tests of `models`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from data.batch import Batch, Example, collate
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.recognizer import Recognizer
from models.spec_augment import SpecAugmentOptions

SMALL: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 16,
    "skip_span": 1,
    "characters": " abc",
    "features": FeatureOptions(kind="log_mel", mel_bins=20, pad_seconds=0.02, normalization="utterance"),
    "front_end": FrontEndOptions(channels=2, first_kernel=(5, 3), second_kernel=(3, 3)),
    "spec_augment": SpecAugmentOptions(frequency_masks=0, time_masks=0),
}


@pytest.fixture
def recognizer() -> Callable[..., Recognizer]:
    """Makes a small recogniser, the same one every time; keyword arguments replace its defaults."""

    def make(**arguments: Any) -> Recognizer:
        torch.manual_seed(0)
        return Recognizer(**(SMALL | arguments))

    return make


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """Makes a batch of noise from (samples, tokens) pairs; an utterance depends on its name alone."""

    def make(*utterances: tuple[int, list[int]], first: int = 0, step_utterances: int | None = None) -> Batch:
        examples = []
        for i, (samples, tokens) in enumerate(utterances, start=first):
            audio = 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(i))
            examples.append(Example(audio, torch.tensor(tokens, dtype=torch.int64), f"u{i}"))
        return collate(examples, step_utterances=step_utterances)

    return make
