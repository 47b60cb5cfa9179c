"""A folded network computes what the network does at evaluation."""

import pytest
import torch

from models.batch_norm import SequenceBatchNorm
from models.features import FeatureOptions
from models.folding import folded
from models.front_end import FrontEndOptions
from models.network import AcousticNetwork
from models.spec_augment import SpecAugmentOptions
from models.stack import StackOptions


@pytest.mark.parametrize("placement", ["after_activation", "after_batch_norm", "before_batch_norm"])
def test_a_folded_network_gives_the_same_log_probabilities(placement):
    torch.manual_seed(0)
    stack = StackOptions(5, 12, skip_span=2, module_layers=2, skip_placement=placement)
    features = FeatureOptions("log_mel", mel_bins=20)
    network = AcousticNetwork(
        stack, 7, features, FrontEndOptions(3, (5, 5), (2, 2), (5, 3), (2, 1)), SpecAugmentOptions()
    )
    with torch.no_grad():
        for norm in (module for module in network.modules() if isinstance(module, SequenceBatchNorm)):
            for vector in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                vector.uniform_(0.5, 1.5)
    network.eval()
    audio, lengths = torch.randn(3, 8000), torch.tensor([8000, 5000, 900])
    own = folded(network)
    expected, frames = network(audio, lengths)
    found, found_frames = own(audio, lengths)
    assert torch.equal(found_frames, frames)
    for b, length in enumerate(frames.tolist()):
        torch.testing.assert_close(found[b, :length], expected[b, :length], rtol=1e-4, atol=1e-4)
    left = [module for module in own.modules() if isinstance(module, SequenceBatchNorm)]
    # A skip before batch norm is scaled with it: layers 4 and 5 end a span that does not cross the first width change.
    assert len(left) == (2 if placement == "before_batch_norm" else 0)
    assert any(isinstance(module, SequenceBatchNorm) for module in network.modules())
