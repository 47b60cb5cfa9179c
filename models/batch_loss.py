"""The CTC loss of one micro-batch, and who takes part in it.

An utterance with too few frames for its transcript takes no part in training: its length is set to 0 before the
features are made, so it has no frame in any batch statistic, no loss and no gradient. It stays in the batch as an empty
row, so nothing waits for the device to learn which it was, and a rank left with none joins all collectives with zeros.
In evaluation such utterances are heard and decoded (they are errors like any others); only their loss is left out.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data.batch import Batch
from models.ctc import alignable, ctc_losses
from models.network import AcousticNetwork


class BatchLoss(NamedTuple):
    """Of one micro-batch on one rank."""

    total: Float[Tensor, ""]  # nats, summed over usable utterances; carries the gradient
    usable: Bool[Tensor, " B"]
    log_probs: Float[Tensor, "B T V"]
    lengths: Int[Tensor, " B"]  # frames


def batch_loss(network: AcousticNetwork, batch: Batch) -> BatchLoss:
    """Run the network and sum the losses; a batch of no utterance counts as one that is absent."""
    batch = batch if len(batch) else _nobody(batch)
    usable = alignable(batch.tokens, batch.token_lengths, network.output_lengths(batch.audio_lengths))
    if network.training:
        heard = torch.where(usable, batch.audio_lengths, 0)
        log_probs, lengths = network(batch.audio, heard, batch.utterance_ids, batch.epoch)
    else:
        log_probs, lengths = network(batch.audio, batch.audio_lengths)
    frames, tokens = torch.where(usable, lengths, 0), torch.where(usable, batch.token_lengths, 0)
    return BatchLoss(ctc_losses(log_probs, frames, batch.tokens, tokens).sum(), usable, log_probs, lengths)


def _nobody(batch: Batch) -> Batch:
    none = torch.zeros(1, dtype=torch.int64, device=batch.audio.device)
    audio, tokens = batch.audio.new_zeros(1, 1), none[:, None]
    return Batch(audio, none, tokens, none, [""], batch.epoch, batch.step_utterances)
