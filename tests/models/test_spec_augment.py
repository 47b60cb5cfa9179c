"""SpecAugment: seeded by (seed, epoch, utterance), bounded by lengths, the same in any batch."""

import torch

from models.spec_augment import SpecAugmentOptions, spec_augment


def masked(
    options: SpecAugmentOptions, lengths: list[int], names: list[str], frames: int = 100, epoch: int = 0
) -> torch.Tensor:
    return spec_augment(torch.ones(len(names), frames, 40), torch.tensor(lengths), options, names, epoch) == 0


def test_the_same_utterance_is_masked_alike_in_any_batch() -> None:
    options = SpecAugmentOptions(time_share=0.4)
    together = masked(options, [80, 100, 30], ["a", "b", "c"])
    turned = masked(options, [30, 80], ["c", "a"])
    assert torch.equal(together[0], turned[1])
    assert torch.equal(together[2], turned[0])
    assert torch.equal(together[1, :100], masked(options, [100], ["b"], frames=150)[0, :100])


def test_epoch_seed_and_name_change_the_mask() -> None:
    options = SpecAugmentOptions(time_share=0.4)
    first = masked(options, [100], ["a"])
    assert not torch.equal(first, masked(options, [100], ["b"]))
    assert not torch.equal(first, masked(options, [100], ["a"], epoch=1))
    assert not torch.equal(first, masked(SpecAugmentOptions(time_share=0.4, seed=1), [100], ["a"]))


def test_masks_keep_to_their_width_and_to_the_utterance() -> None:
    options = SpecAugmentOptions(frequency_masks=1, frequency_width=5, time_masks=1, time_width=10, time_share=0.2)
    names = [f"u{i}" for i in range(500)]
    lengths = [1 + i % 60 for i in range(500)]
    hidden = masked(options, lengths, names)
    bands, stretches = hidden[:, -1].sum(1), hidden[:, :, :].all(2).sum(1)
    assert bands.max() == 5
    assert bands.min() == 0
    assert stretches.max() == 10
    for row, length in zip(hidden, lengths, strict=True):
        assert row[:length].all(1).sum() <= min(10, int(0.2 * length))
        assert not (row.all(1)[length:]).any(), "no mask is spent on padding"
    # The whole width is reached: the first and the last bin are hidden now and then.
    assert hidden[:, -1, 0].any()
    assert hidden[:, -1, -1].any()


def test_no_masks_change_nothing() -> None:
    assert not masked(SpecAugmentOptions(frequency_masks=0, time_masks=0), [100], ["a"]).any()
