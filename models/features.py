"""From audio to normalised spectral features, on the device the audio is on.

    audio [B,N] -> noise, audio, noise [B,N+2P] -> power spectrum -> log -> (x - mean) / deviation   [B,T,F]

* Both ends get `pad_seconds` of low noise, always the same one: some corpora are cut so tight that the first phone has
  no left context and a short word no frames to be aligned with. An utterance of length 0 stays at length 0.
* Frame t is centred at sample (t + 1/2) * stride and T = ceil(samples / stride), so every sample counts and lengths
  stay integers.
* Log spectrogram: 161 bins, a 20 ms Hann window at 16 kHz. Log-mel: `mel_bins` triangles (torchaudio's filter bank).
* Normalisation by the corpus's mean and deviation per bin, which are buffers and travel in the checkpoint, or per
  utterance (which needs the whole utterance, so such a model cannot stream). Everything runs in float32, whatever the
  network's precision.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
import torchaudio
from jaxtyping import Float, Int
from torch import Tensor, nn

from models.float32_buffers import keep_buffers_float32
from models.frames import frame_mask

LOG_FLOOR = 1e-6  # power; digital silence meets the padding's noise here
PAD_NOISE = 1e-4  # standard deviation of the padding, full scale = 1
PAD_NOISE_SEED = 20160619
MEL_LOWEST = 20.0  # Hz, where the first mel triangle begins


@dataclass(frozen=True)
class FeatureOptions:
    """What the network hears."""

    kind: Literal["log_spectrogram", "log_mel"] = "log_spectrogram"
    sample_rate: int = 16_000
    """Hz; the data resamples to it."""
    window_seconds: float = 0.02
    stride_seconds: float = 0.01
    mel_bins: int = 80
    """Bins of the log-mel; a log spectrogram has window_seconds * sample_rate / 2 + 1."""
    pad_seconds: float = 0.1
    """Low noise added at both ends."""
    normalization: Literal["corpus", "utterance"] = "corpus"
    statistics_batches: int = 100
    """Training batches from which the corpus's mean and deviation are estimated."""

    def __post_init__(self) -> None:
        for name, allowed in (("kind", ("log_spectrogram", "log_mel")), ("normalization", ("corpus", "utterance"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"features.{name} {getattr(self, name)!r} was given; it is {' or '.join(allowed)}.")


class Features(nn.Module):
    """Audio to normalised features; `num_bins` is F."""

    window: Tensor
    noise: Tensor
    filter_bank: Tensor | None
    mean: Tensor
    deviation: Tensor
    estimated: Tensor

    def __init__(self, options: FeatureOptions) -> None:
        super().__init__()
        self.options = options
        self.stride = round(options.stride_seconds * options.sample_rate)
        self.pad = round(options.pad_seconds * options.sample_rate)
        window = round(options.window_seconds * options.sample_rate)
        if window < 2 or not 1 <= self.stride <= window or self.pad < 0:
            raise ValueError(
                f"features: a window of {window} samples, a stride of {self.stride} and {self.pad} samples of padding "
                "were given; the window needs at least 2, the stride 1 to the window's length, the padding 0 or more: "
                "change window_seconds, stride_seconds or pad_seconds."
            )
        self.fft = window
        filter_bank = None
        # A generator on a GPU would draw another noise, and torchaudio reads what is in its bank.
        with torch.device("cpu"):
            if options.kind == "log_mel":
                self.fft = max(window, _mel_fft(options))
                bank = torchaudio.functional.melscale_fbanks(
                    self.fft // 2 + 1, MEL_LOWEST, options.sample_rate / 2, options.mel_bins, options.sample_rate
                )
                # Twice, since real and imaginary parts are squared side by side.
                filter_bank = bank.repeat_interleave(2, dim=0)
            noise = PAD_NOISE * torch.randn(self.pad, generator=torch.Generator().manual_seed(PAD_NOISE_SEED))
            before = (self.fft - window) // 2
            hann = F.pad(torch.hann_window(window), (before, self.fft - window - before))
        self.num_bins = self.fft // 2 + 1 if filter_bank is None else options.mel_bins
        # To where `with torch.device(...)` puts a module that is made within it.
        device = torch.get_default_device()
        self.register_buffer("window", hann.to(device), persistent=False)
        self.register_buffer("noise", noise.to(device), persistent=False)
        self.register_buffer("filter_bank", None if filter_bank is None else filter_bank.to(device), persistent=False)
        self.register_buffer("mean", torch.zeros(self.num_bins))
        self.register_buffer("deviation", torch.ones(self.num_bins))
        self.register_buffer("estimated", torch.zeros((), dtype=torch.bool))

    def output_lengths(self, audio_lengths: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Samples -> feature frames."""
        padded = torch.where(audio_lengths > 0, audio_lengths + 2 * self.pad, 0)
        return (padded + self.stride - 1) // self.stride

    def forward(
        self, audio: Float[Tensor, "B N"], audio_lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B T F"], Int[Tensor, " B"]]:
        """Normalised float32 features, zero past each length, and their lengths in frames."""
        with torch.no_grad(), torch.autocast(audio.device.type, enabled=False):
            spectrum, lengths = self.log_spectrum(audio.float(), audio_lengths)
            mask = frame_mask(lengths, spectrum.shape[1])[:, :, None]
            if self.options.normalization == "utterance":
                count = lengths.clamp(min=1)[:, None, None]
                centred = (spectrum - (spectrum * mask).sum(1, keepdim=True) / count) * mask
                variance = centred.square().sum(1, keepdim=True) / count
                # The floor keeps one frame, silence and constant tones finite; speech varies by about 4.
                return centred * torch.rsqrt(variance + 1e-3), lengths
            return (spectrum - self.mean) / self.deviation * mask, lengths

    def log_spectrum(
        self, audio: Float[Tensor, "B N"], audio_lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B T F"], Int[Tensor, " B"]]:
        """Log power per bin before normalisation; frames past each length hold no meaning."""
        audio = self._with_ends(audio, audio_lengths)
        frames = -(-audio.shape[1] // self.stride)
        before = (self.fft - self.stride) // 2
        after = (frames - 1) * self.stride + self.fft - before - audio.shape[1]
        pieces = F.pad(audio, (before, max(after, 0))).unfold(1, self.fft, self.stride)[:, :frames]
        # A CPU is three times faster on one utterance after the other, which stays in its cache.
        shares = pieces.split(1) if audio.device.type == "cpu" else (pieces,)
        return torch.cat([self._log_power(share) for share in shares]), self.output_lengths(audio_lengths)

    def _log_power(self, pieces: Tensor) -> Tensor:
        parts = torch.view_as_real(torch.fft.rfft(pieces * self.window)).flatten(-2)
        parts.mul_(parts)
        power = parts.unflatten(-1, (-1, 2)).sum(-1) if self.filter_bank is None else parts @ self.filter_bank
        return power.add_(LOG_FLOOR).log_()

    def _with_ends(self, audio: Tensor, audio_lengths: Tensor) -> Tensor:
        B, N = audio.shape
        padded = audio.new_zeros(B, N + 2 * self.pad)
        padded[:, : self.pad] = self.noise
        padded[:, self.pad : self.pad + N] = torch.where(frame_mask(audio_lengths, N), audio, 0)
        tail = audio_lengths[:, None] + self.pad + torch.arange(self.pad, device=audio.device)
        return padded.scatter(1, tail, self.noise.expand(B, -1))

    @torch.no_grad()
    def estimate(self, batches: Iterable[tuple[Float[Tensor, "B N"], Int[Tensor, " B"]]]) -> None:
        """Set the corpus's mean and deviation from (audio, audio_lengths) batches on the buffers' device; ranks pool
        what they saw.

        Raises ValueError when no rank saw a frame.
        """
        sums = torch.zeros(2 * self.num_bins + 1, dtype=torch.float64, device=self.mean.device)
        for audio, audio_lengths in batches:
            spectrum, lengths = self.log_spectrum(audio.float(), audio_lengths)
            valid = spectrum[frame_mask(lengths, spectrum.shape[1])].double()
            sums += torch.cat([valid.sum(0), valid.square().sum(0), valid.new_tensor([valid.shape[0]])])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        count = sums[-1]
        if count == 0:
            raise ValueError(
                "features: no audio was given to estimate the corpus's mean from; the training manifest needs one "
                "utterance."
            )
        mean = sums[: self.num_bins] / count
        variance = sums[self.num_bins : -1] / count - mean.square()
        self.mean.copy_(mean)
        self.deviation.copy_(variance.clamp(min=1e-3).sqrt())
        self.estimated.fill_(True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Features":
        # `.to(bfloat16)` moves the buffers with the network and leaves them in float32.
        return keep_buffers_float32(self, super()._apply, fn, recurse)


def _mel_fft(options: FeatureOptions) -> int:
    """The shortest power of two of samples whose frequency bins are closer than the first, narrowest triangle is
    wide."""
    bottom, top = (2595 * math.log10(1 + hz / 700) for hz in (MEL_LOWEST, options.sample_rate / 2))
    end = bottom + 2 * (top - bottom) / (options.mel_bins + 1)
    width = 700 * (10 ** (end / 2595) - 1) - MEL_LOWEST
    if options.window_seconds * width > 1:
        return 0
    return 2 ** math.ceil(math.log2(options.sample_rate / width))
