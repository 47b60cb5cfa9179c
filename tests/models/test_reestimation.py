"""Running statistics made anew: those of all frames, whatever training left; nothing else of the network moves."""

import pytest
import torch

from data.batch import Batch
from models.batch_norm import SequenceBatchNorm
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.network import AcousticNetwork
from models.reestimation import reestimate_statistics
from models.spec_augment import SpecAugmentOptions
from models.stack import StackOptions


def _network(**stack) -> AcousticNetwork:
    torch.manual_seed(0)
    front_end = FrontEndOptions(3, (5, 5), (2, 2), (5, 3), (2, 1))
    options = StackOptions(4, 12, **stack)
    return AcousticNetwork(options, 7, FeatureOptions("log_mel", mel_bins=20), front_end, SpecAugmentOptions())


def _batch(audio: torch.Tensor, lengths: torch.Tensor) -> Batch:
    none = torch.zeros(len(audio), dtype=torch.int64)
    return Batch(audio, lengths, none[:, None], none, [f"u{i}" for i in range(len(audio))], 0, len(audio))


def _batches(count: int) -> list[Batch]:
    torch.manual_seed(1)
    return [_batch(torch.randn(3, 6000), torch.tensor([6000, 4000, 900 * i])) for i in range(count)]


def _statistics(network: AcousticNetwork) -> list[torch.Tensor]:
    norms = [module for module in network.modules() if isinstance(module, SequenceBatchNorm)]
    return [value.clone() for norm in norms for value in (norm.running_mean, norm.running_var)]


def test_one_batch_evaluates_as_it_was_trained():
    """With the statistics of that very batch, training and evaluation say the same."""
    network, batch = _network(), (torch.randn(3, 60_000), torch.tensor([60_000, 40_000, 0]))
    reestimate_statistics(network, [_batch(*batch)], augment=False)
    trained, lengths = network.train()(*batch)
    evaluated, _ = network.eval()(*batch)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(evaluated[b, :length], trained[b, :length], rtol=0.05, atol=0.05)  # n / (n - 1)


def test_batches_count_by_their_frames_and_what_was_before_by_nothing():
    batches = _batches(3)
    found = []
    for start, given in ((0.0, batches), (7.0, [*batches[::-1]]), (1.0, [*batches, *batches])):
        network = _network()
        for norm in (module for module in network.modules() if isinstance(module, SequenceBatchNorm)):
            norm.running_mean.fill_(start)
        reestimate_statistics(network, given, augment=False)
        found.append(_statistics(network))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)
    # The first norm's input does not depend on statistics: its mean is that of all frames of the image.
    network = _network()
    norm, sums, n = network.front_end.norms[0], 0.0, 0.0
    for batch in batches:
        audio, lengths = batch.audio, batch.audio_lengths
        features, frames = network.features(audio, lengths)
        image = network.front_end.convolutions[0](features.transpose(1, 2)[:, None])
        mask = (torch.arange(image.shape[-1]) < ((frames + 1) // 2)[:, None])[:, None, None, :]
        sums, n = sums + (image * mask).sum((0, 2, 3)), n + mask.sum() * image.shape[2]
    reestimate_statistics(network, batches, augment=False)
    torch.testing.assert_close(norm.running_mean, (sums / n).detach(), rtol=1e-4, atol=1e-5)


def test_masks_of_training_take_part():
    masked, clean = _network(), _network()
    reestimate_statistics(masked, _batches(2))
    reestimate_statistics(clean, _batches(2), augment=False)
    assert not torch.allclose(masked.front_end.norms[0].running_var, clean.front_end.norms[0].running_var)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_else_moves(training):
    network = _network(dropout=0.5, memory_policy="recompute").train(training)
    before = {name: value.clone() for name, value in network.state_dict().items() if "running" not in name}
    options = network.stack.options
    reestimate_statistics(network, _batches(2))
    assert network.training is training
    assert network.stack.options is options
    after = network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert {m.momentum for m in network.modules() if isinstance(m, SequenceBatchNorm)} == {0.1}
    assert all(p.grad is None for p in network.parameters())


def test_without_speech_it_says_so():
    network = _network()
    before = _statistics(network)
    with pytest.raises(ValueError, match="no frame of speech"):
        reestimate_statistics(network, [_batch(torch.zeros(1, 100), torch.tensor([0]))])
    assert all(torch.equal(a, b) for a, b in zip(_statistics(network), before, strict=True))
