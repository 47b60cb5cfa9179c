"""What is done to the audio of a training utterance, as a function of (seed, epoch, id): speed, room, noise, level.

In the order of nature: the voice (speed perturbation, Ko et al., Interspeech 2015), the room (convolution with an
impulse response, Ko et al., ICASSP 2017), the noise at the microphone, its gain. Only speed changes the length. Noise
and rooms come from folders of sound files, such as MUSAN (openslr.org/17) and RIRS (openslr.org/28). Legend: `N`
samples.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from data.audio import read_audio, resample
from data.importers.found import AUDIO_SUFFIXES
from data.speed import SpeedPerturbation

FILES_KEPT = 64  # decoded noises and rooms in memory, a process


@dataclass(frozen=True)
class Augmentation:
    """Each part is left out where it is not given.

    `noises`, `rooms`: sound files; the probabilities say how many utterances meet one. `noise_snr_db`: signal over
    noise, drawn evenly between the two; `gain_db` likewise, on top of the level that the audio has.
    """

    speed: SpeedPerturbation = field(default_factory=lambda: SpeedPerturbation(()))
    noises: tuple[Path, ...] = ()
    noise_probability: float = 0.5
    noise_snr_db: tuple[float, float] = (5.0, 30.0)
    rooms: tuple[Path, ...] = ()
    room_probability: float = 0.5
    gain_db: tuple[float, float] = (0.0, 0.0)
    sample_rate: int = 16000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("noise_probability", "room_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give a share of utterances from 0 to 1.")
        for name in ("noise_snr_db", "gain_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} is {low:g} to {high:g}; give the lower one first.")

    @property
    def changes_anything(self) -> bool:
        """Whether any part is given."""
        return bool(self.speed.factors or self.noises or self.rooms) or self.gain_db != (0.0, 0.0)

    def __call__(self, audio: Float[Tensor, "N"], key: int, epoch: int) -> Float[Tensor, "M"]:
        """The audio of this utterance in this epoch, within [-1, 1]."""
        speed = float(self.speed.of(np.array([key], np.uint64), epoch)[0])
        if speed != 1:
            # A speed of 1.1 is the audio taken as if it had been recorded at 1.1 times the rate.
            audio = resample(audio, round(100 * speed), 100)
        length = len(audio)
        random = np.random.default_rng([self.seed, epoch, key])
        if self.rooms and random.random() < self.room_probability:
            audio = reverberate(audio, self._load(self.rooms, random))
        if self.noises and random.random() < self.noise_probability:
            noise = self._load(self.noises, random)
            audio = add_noise(audio, noise, random.uniform(*self.noise_snr_db), int(random.integers(len(noise))))
        if self.gain_db != (0.0, 0.0):
            audio = audio * 10 ** (random.uniform(*self.gain_db) / 20)
        assert len(audio) == length
        return audio / max(1.0, float(audio.abs().max()))

    def _load(self, files: tuple[Path, ...], random: np.random.Generator) -> Tensor:
        return _decoded(files[int(random.integers(len(files)))], self.sample_rate)


def sounds_of(folder: str | Path) -> tuple[Path, ...]:
    """The sound files below a folder, in a fixed order. Raises ValueError where there are none."""
    found = tuple(sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES))
    if not found:
        raise ValueError(f"{folder}: no sound file in it; name a folder of noises or impulse responses.")
    return found


def add_noise(audio: Float[Tensor, "N"], noise: Float[Tensor, "M"], snr_db: float, start: int) -> Float[Tensor, "N"]:
    """Noise from sample `start` on, from its beginning again where it is short, `snr_db` below the mean power."""
    repeats = -(-(start + len(audio)) // len(noise))
    noise = noise.repeat(repeats)[start : start + len(audio)]
    power = noise.square().mean()
    if power == 0:
        return audio
    return audio + noise * (audio.square().mean() / power * 10 ** (-snr_db / 10)).sqrt()


def reverberate(audio: Float[Tensor, "N"], room: Float[Tensor, "M"]) -> Float[Tensor, "N"]:
    """Convolution with an impulse response whose loudest sample is the direct sound: timing, length and power stay."""
    direct = int(room.abs().argmax())
    size = len(audio) + len(room) - 1
    wet = torch.fft.irfft(torch.fft.rfft(audio, size) * torch.fft.rfft(room, size), size)[direct : direct + len(audio)]
    power = wet.square().mean()
    return wet * (audio.square().mean() / power).sqrt() if power > 0 else audio


@lru_cache(maxsize=FILES_KEPT)
def _decoded(path: Path, sample_rate: int) -> Tensor:
    audio: Tensor = read_audio(path, sample_rate=sample_rate)
    return audio
