"""Audio in: any file that libsndfile reads (wav of any depth, flac, ogg/opus, mp3) to float32 samples at one rate.

Legend: `N` samples, `C` channels. Samples are float32 in [-1, 1]. A file inside a shard is read by its byte span,
through the same function. What cannot be read, ends early, is empty or holds NaN raises `AudioError` with the path:
nothing is padded and nothing repaired.
"""

import io
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soundfile
import torch
from jaxtyping import Float
from torch import Tensor

from data.storage import is_remote, location, read_bytes, why_unreadable

DURATION_TOLERANCE = 0.1  # seconds that a manifest's duration may differ from the audio's (mp3 pads by up to 0.05)
Channel = int | Literal["mix", "error"]


class AudioError(ValueError):
    """Audio that cannot be used; the sentence names the path and what to do."""


def read_audio(
    path: str | Path,
    *,
    sample_rate: int = 16000,
    offset: float = 0.0,
    duration: float | None = None,
    channel: Channel = "mix",
    byte_span: tuple[int, int] | None = None,
    to_end: bool = False,
) -> Float[Tensor, "N"]:
    """Samples of `path` at `sample_rate`, from `offset` seconds on, `duration` seconds of them (None: to the end).

    `channel` says what to do with more than one: "mix" averages, an integer picks one, "error" refuses.
    `to_end` says that the duration should be that of the rest of the file.
    Raises AudioError for what is unreadable, truncated, empty or not finite, and when the file ends more than
    `DURATION_TOLERANCE` before the asked duration, or with `to_end` after it.
    """
    path = Path(path)
    named = location(path)
    try:
        with _open(path, byte_span) as sound:
            rate, total = sound.samplerate, sound.frames
            start = round(offset * rate)
            wanted = total - start if duration is None else round(duration * rate)
            if start >= total > 0:
                raise AudioError(
                    f"{named}: offset {offset:g} s is past its end at {total / rate:g} s; mend the manifest."
                )
            surplus = total - start - wanted
            if -surplus > DURATION_TOLERANCE * rate or (to_end and surplus > DURATION_TOLERANCE * rate):
                raise AudioError(
                    f"{named}: {(total - start) / rate:.3f} s of audio where {duration:.3f} s are expected; "
                    "mend the duration in the manifest or replace the file."
                )
            wanted = total - start if to_end else min(wanted, total - start)
            if start:
                sound.seek(start)
            samples = sound.read(wanted, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        if not is_remote(path) and not path.exists():
            raise AudioError(
                f"{named}: there is no such file; put it there, mend audio_filepath or take out its line."
            ) from error
        raise AudioError(
            f"{named}: the audio cannot be read ({why_unreadable(path, error)}); replace the file or take out its line."
        ) from error
    if len(samples) < wanted:
        raise AudioError(f"{named}: truncated, {len(samples)} of {wanted} samples can be read; replace the file.")
    if not len(samples):
        raise AudioError(f"{named}: no samples; replace the file or take out its line.")
    mono = _one_channel(samples, channel, named)
    if not np.isfinite(mono).all():
        raise AudioError(f"{named}: NaN or infinite samples; write the file anew.")
    return resample(torch.from_numpy(mono), rate, sample_rate)


def _open(path: Path, byte_span: tuple[int, int] | None) -> soundfile.SoundFile:
    if byte_span is None and not is_remote(path):
        return soundfile.SoundFile(str(path))
    if byte_span is not None and not is_remote(path) and (file := _flac_inside(path, byte_span)) is not None:
        return soundfile.SoundFile(file, closefd=True)
    return soundfile.SoundFile(io.BytesIO(read_bytes(path, byte_span)))


def _flac_inside(path: Path, byte_span: tuple[int, int]) -> int | None:
    """A file descriptor that stands at a FLAC file inside another, which libsndfile then reads in place: an eighth
    faster
    than from a copy. Other formats look for the end of the file, and so need to be on their own."""
    start, length = byte_span
    file = os.open(path, os.O_RDONLY)
    if os.pread(file, 4, start) == b"fLaC" and os.fstat(file).st_size >= start + length:
        os.lseek(file, start, os.SEEK_SET)
        return file
    os.close(file)
    return None


def _one_channel(samples: np.ndarray, channel: Channel, path: str) -> np.ndarray:
    channels = samples.shape[1]
    if channels == 1:
        return samples[:, 0]
    if channel == "mix":
        return samples.mean(axis=1)
    if channel == "error":
        raise AudioError(f'{path}: {channels} channels; set channel to "mix" or to the number of the one to take.')
    if not 0 <= channel < channels:
        raise AudioError(f"{path}: channel {channel} asked of {channels}; set channel below {channels}.")
    return np.ascontiguousarray(samples[:, channel])


def resample(samples: Float[Tensor, "N"], from_rate: int, to_rate: int) -> Float[Tensor, "M"]:
    """The samples at another rate: windowed sinc with a Kaiser window, the filter of librosa's "kaiser_best"."""
    if from_rate == to_rate:
        return samples
    resampled: Tensor = _resampler(from_rate, to_rate)(samples)
    return resampled


@lru_cache(maxsize=32)
def _resampler(from_rate: int, to_rate: int) -> Any:
    from torchaudio.transforms import Resample  # 1 s to import: only where a rate differs

    return Resample(
        from_rate,
        to_rate,
        resampling_method="sinc_interp_kaiser",
        lowpass_filter_width=64,
        rolloff=0.9475937167399596,
        beta=14.769656459379492,
    )
