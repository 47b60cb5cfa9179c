"""Features: exact lengths, finite values, padding that never speaks, statistics of the corpus."""

import pytest
import torch

from models.features import FeatureOptions, Features


def tiny(stride: int = 10, **options: object) -> Features:
    """1 kHz audio, so that lengths in samples are small."""
    return Features(FeatureOptions(sample_rate=1000, stride_seconds=stride / 1000, **{"pad_seconds": 0.0, **options}))


@pytest.mark.parametrize("stride", [1, 3, 7, 10, 20])
@pytest.mark.parametrize("pad_seconds", [0.0, 0.013])
def test_predicted_length_is_actual_length(stride: int, pad_seconds: float) -> None:
    features = tiny(stride, pad_seconds=pad_seconds)
    for samples in range(1, 401):
        lengths = torch.tensor([samples])
        x, frames = features(torch.ones(1, samples), lengths)
        assert x.shape == (1, frames.item(), 11)
        assert frames.item() == features.output_lengths(lengths).item() == -(-(samples + 2 * features.pad) // stride)


def test_the_papers_bins() -> None:
    features = Features(FeatureOptions())
    assert features.num_bins == 161
    x, lengths = features(torch.randn(2, 16_000), torch.tensor([16_000, 0]))
    assert x.shape == (2, 120, 161)
    assert lengths.tolist() == [120, 0], "an utterance of no samples stays away, padding or not"
    assert (x[1] == 0).all()


def test_every_mel_band_hears_something() -> None:
    features = Features(FeatureOptions(kind="log_mel"))
    assert features.filter_bank is not None
    assert features.num_bins == 80
    assert (features.filter_bank.sum(0) > 0).all()


def test_a_tone_lands_in_its_bin_and_at_its_time() -> None:
    features = Features(FeatureOptions(pad_seconds=0.1))
    time = torch.arange(16_000) / 16_000
    tone = torch.sin(2 * torch.pi * 2000 * time) * (time > 0.5)
    spectrum, _ = features.log_spectrum(tone[None], torch.tensor([16_000]))
    assert spectrum[0, 90].argmax() == 2000 // 50
    loud = (spectrum[0, :, 40] > 0).nonzero().flatten()
    assert abs(loud[0].item() - 60) <= 1, "0.1 s of padding + 0.5 s of silence are 60 frames"
    assert abs(loud[-1].item() - 110) <= 1


@pytest.mark.parametrize("extra", [0, 7, 1000])
@pytest.mark.parametrize("normalization", ["corpus", "utterance"])
def test_padding_never_speaks(extra: int, normalization: str) -> None:
    features = Features(FeatureOptions(kind="log_mel", normalization=normalization, pad_seconds=0.05))
    audio = torch.randn(3, 5000)
    lengths = torch.tensor([5000, 1234, 1])
    wide = torch.full((3, 5000 + extra), 9.9)
    for row, length in enumerate(lengths.tolist()):
        wide[row, :length] = audio[row, :length]
    x, frames = features(wide, lengths)
    for row, (length, end) in enumerate(zip(lengths.tolist(), frames.tolist(), strict=True)):
        alone, _ = features(audio[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(x[row, :end], alone[0], rtol=1e-4, atol=1e-4)
        assert (x[row, end:] == 0).all()


@pytest.mark.parametrize("samples", [1, 160, 16_000])
@pytest.mark.parametrize("level", [0.0, 1.0])
@pytest.mark.parametrize("pad_seconds", [0.0, 0.1])
def test_short_silent_and_constant_audio_is_finite(samples: int, level: float, pad_seconds: float) -> None:
    features = Features(FeatureOptions(normalization="utterance", pad_seconds=pad_seconds))
    x, _ = features(torch.full((1, samples), level), torch.tensor([samples]))
    assert torch.isfinite(x).all()
    assert x.abs().max() < 100


def test_corpus_statistics_leave_out_padding_and_do_not_depend_on_batches() -> None:
    torch.manual_seed(0)
    audio = [torch.randn(n) * (i + 1) for i, n in enumerate((4000, 900, 2500))]
    lengths = torch.tensor([len(a) for a in audio])
    together = torch.nn.utils.rnn.pad_sequence(audio, batch_first=True)
    one, three = Features(FeatureOptions()), Features(FeatureOptions())
    one.estimate([(together, lengths)])
    three.estimate((a[None], torch.tensor([len(a)])) for a in audio)
    frames = torch.cat([one.log_spectrum(a[None], torch.tensor([len(a)]))[0][0] for a in audio])
    for features in (one, three):
        assert bool(features.estimated)
        torch.testing.assert_close(features.mean, frames.mean(0), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(features.deviation, frames.std(0, correction=0), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="no audio"):
        one.estimate([])


def test_statistics_stay_float32_in_a_bfloat16_network() -> None:
    features = Features(FeatureOptions())
    features.mean.fill_(1.2345678)
    audio, lengths = torch.randn(1, 4000), torch.tensor([4000])
    before, _ = features(audio, lengths)
    features.to(torch.bfloat16)
    assert features.mean.dtype == features.window.dtype == torch.float32
    torch.testing.assert_close(features(audio, lengths)[0], before, rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [{"stride_seconds": 0.0}, {"stride_seconds": 0.03}, {"pad_seconds": -0.1}])
def test_a_wrong_window_is_one_sentence(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"features: .* change window_seconds"):
        Features(FeatureOptions(**wrong))


def test_what_lies_past_the_end_is_never_heard() -> None:
    features = Features(FeatureOptions(normalization="utterance")).eval()
    audio = torch.randn(2, 4000)
    clean, _ = features(audio.clone(), torch.tensor([4000, 2500]))
    audio[1, 2500:] = float("nan")
    dirty, _ = features(audio, torch.tensor([4000, 2500]))
    assert torch.equal(clean, dirty)


@pytest.mark.parametrize(("name", "value"), [("kind", "mfcc"), ("normalization", "speaker")])
def test_unknown_options_are_refused(name: str, value: str) -> None:
    options = FeatureOptions()
    object.__setattr__(options, name, value)  # the constructor's types are checked under test alone
    with pytest.raises(ValueError, match=f"features.{name} '{value}' was given; it is"):
        options.__post_init__()
