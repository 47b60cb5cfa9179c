"""Batch norm's running statistics made anew after training, from as much data as one likes (Wu and Johnson, 2021,
"Rethinking Batch in BatchNorm", section 3).

    mean = sum_i n_i mean_i / n,   var = sum_i n_i (var_i + mean_i^2) / n - mean^2         batches i, n = sum_i n_i

The running ones are an exponential mean over the last dozens of micro-batches, of weights that moved meanwhile; with a
mini-batch of 4 each is an estimate from a few seconds of speech. Here all batches count alike by their frames and the
weights stand still. Each batch is normalised by its own statistics while it passes, as in training, so batches may be
larger than training's. Dropout is off. SpecAugment is on where training had it: a frame that is not masked was
normalised, in training, by statistics in which masked ones took part.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch

from data.batch import Batch
from models.batch_norm import SequenceBatchNorm
from models.network import AcousticNetwork


@torch.no_grad()
def reestimate_statistics(network: AcousticNetwork, batches: Iterable[Batch], augment: bool = True) -> None:
    """Set every batch norm's running statistics from batches on the network's device; its mode stays.

    Raises ValueError when no batch holds a frame of speech.
    """
    norms = [module for module in network.modules() if isinstance(module, SequenceBatchNorm)]
    momenta, training, options = [norm.momentum for norm in norms], network.training, network.stack.options
    sums = [torch.zeros(2, len(norm.weight), dtype=torch.float64, device=norm.running_mean.device) for norm in norms]
    frames = 0
    try:
        network.train()
        network.stack.options = replace(options, dropout=0.0, memory_policy="save")
        for norm in norms:
            norm.momentum = 1.0  # the running statistics are then the batch's own
        for batch in batches:
            n = int(network.output_lengths(batch.audio_lengths).sum())
            if n == 0:
                continue
            network(batch.audio, batch.audio_lengths, batch.utterance_ids if augment else None, batch.epoch)
            frames += n
            for norm, total in zip(norms, sums, strict=True):
                mean, var = norm.running_mean.double(), norm.running_var.double()
                total += n * torch.stack([mean, var + mean.square()])
    finally:
        network.train(training)
        network.stack.options = options
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    if frames == 0:
        raise ValueError("no frame of speech was given to estimate batch norm's statistics from; give an utterance.")
    for norm, total in zip(norms, sums, strict=True):
        mean, square = total / frames
        norm.running_mean.copy_(mean)
        norm.running_var.copy_((square - mean.square()).clamp(min=0.0))
