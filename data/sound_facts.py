"""What a sound file is, as numbers: from its header alone, or with all of its samples read.

Needs no torch, so that checking a corpus starts at once. libsndfile works outside of Python's lock: threads are
enough to use every core.
"""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from data.storage import is_remote, read_bytes

CLIPPED = 0.999  # of full scale
_EDGE = 1 << 14  # bytes at each end that stand for a file's content where it is not decoded


@dataclass(frozen=True)
class SoundFacts:
    """`frames` samples a channel by the header. `content` is a hash: of the samples where they were read (`decoded`).

    `readable` is the number of samples that decoding gave, `peak` their largest magnitude, `clipped` the number of
    samples at full scale in runs of three and more, `finite` whether all are numbers.
    """

    sample_rate: int
    channels: int
    frames: int
    content: str
    decoded: bool = False
    readable: int = 0
    peak: float = 0.0
    clipped: int = 0
    finite: bool = True

    @property
    def seconds(self) -> float:
        """Of the whole file: what could be read where it was, what the header says elsewhere."""
        return (self.readable if self.decoded else self.frames) / self.sample_rate


def sound_facts(path: Path, byte_span: tuple[int, int] | None = None, *, decode: bool = False) -> SoundFacts:
    """Facts of a file, or of one inside a shard. Raises soundfile.SoundFileError or OSError where it cannot open."""
    in_memory = byte_span is not None or is_remote(path)
    content = read_bytes(path, byte_span) if in_memory else b""
    with soundfile.SoundFile(io.BytesIO(content) if in_memory else str(path)) as sound:
        if not decode:
            edges = _edges_of(content) if in_memory else _edges(path)
            return SoundFacts(sound.samplerate, sound.channels, sound.frames, edges)
        return _decoded(sound)


def _edges(path: Path) -> str:
    length = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_EDGE)
        stream.seek(max(0, length - _EDGE))
        return _hash(length, head, stream.read(_EDGE))


def _edges_of(content: bytes) -> str:
    return _hash(len(content), content[:_EDGE], content[max(0, len(content) - _EDGE) :])


def _hash(length: int, head: bytes, tail: bytes) -> str:
    return hashlib.blake2b(b"%d:" % length + head + tail, digest_size=16).hexdigest()


def _blocks(sound: soundfile.SoundFile) -> Iterator[NDArray[np.float32]]:
    try:
        yield from sound.blocks(1 << 12, dtype="float32", always_2d=True)
    except soundfile.SoundFileError:
        return  # a file that breaks off: `readable` below `frames` says so


def _decoded(sound: soundfile.SoundFile) -> SoundFacts:
    digest = hashlib.blake2b(b"%d:%d:" % (sound.samplerate, sound.channels), digest_size=16)
    readable, peak, clipped, finite = 0, 0.0, 0, True
    for block in _blocks(sound):
        readable += len(block)
        finite &= bool(np.isfinite(block).all())
        peak = max(peak, float(np.abs(block).max(initial=0.0)))
        full = np.abs(block) >= CLIPPED
        clipped += int((full[2:] & full[1:-1] & full[:-2]).sum())
        # float32 holds 16 and 24 bits exactly, so the same samples in another lossless container are the same content.
        digest.update((block + np.float32(0)).tobytes())  # -0.0 + 0 is 0.0
    return SoundFacts(
        sound.samplerate,
        sound.channels,
        sound.frames,
        digest.hexdigest(),
        decoded=True,
        readable=readable,
        peak=peak,
        clipped=clipped,
        finite=finite,
    )
