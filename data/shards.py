"""A corpus packed into few large files: uncompressed tar, one sound file a member, read by their bytes.

Any tar tool lists and unpacks a shard; the manifest (or index) that goes with it names shard, first byte and length,
so that an utterance is one seek and one read, in any order. Small files are what network disks and object stores are
slow at.

Codecs: "keep" copies the bytes of whole files, and writes segments as FLAC; "flac" writes everything as FLAC, in the
depth and rate it has; "opus" as Ogg Opus, about a tenth of the size and not lossless.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import soundfile

from data.manifest import Utterance
from data.storage import location, read_bytes, why_unreadable

Codec = Literal["keep", "flac", "opus"]
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)


def pack(
    rows: Iterable[Utterance], folder: str | Path, *, codec: Codec = "keep", shard_bytes: int = 1 << 30
) -> Iterator[Utterance]:
    """Write the rows' audio to `folder`/shard-00000.tar and on, each of about `shard_bytes`; yields the rows as packed.

    A shard is renamed into place when it is full. Raises ValueError for audio that cannot be read.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    packed: list[tuple[Utterance, tuple[int, int]]] = []
    shard = _Shard(folder, number)
    try:
        for row in rows:
            try:
                content, suffix = _content(row, codec)
            except (soundfile.SoundFileError, OSError) as error:
                why = why_unreadable(row.audio_filepath, error)
                raise ValueError(
                    f"{row.place}: {location(row.audio_filepath)} cannot be read ({why}); "
                    "replace the file or take out its line."
                ) from error
            packed.append((row, shard.add(f"{number:05d}/{len(packed):06d}{suffix}", content)))
            if shard.size >= shard_bytes:
                yield from _finished(shard, packed)
                number, packed = number + 1, []
                shard = _Shard(folder, number)
        if packed:
            yield from _finished(shard, packed)
    finally:
        shard.drop()


class _Shard:
    """A tar that is being written; `add` returns where the content of a member lies."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / f"shard-{number:05d}.tar"
        self._partial = folder / f"shard-{number:05d}.tar.partial"
        self._tar = tarfile.open(self._partial, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        self.size = 0

    def add(self, name: str, content: bytes) -> tuple[int, int]:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        start = self._tar.offset + tarfile.BLOCKSIZE  # one header block in USTAR, whatever the name
        self._tar.addfile(member, io.BytesIO(content))
        self.size = self._tar.offset
        return start, len(content)

    def finish(self) -> Path:
        self._tar.close()
        return self._partial.replace(self.path)

    def drop(self) -> None:
        """Leave no unfinished file behind; nothing to do after `finish`."""
        self._tar.close()
        self._partial.unlink(missing_ok=True)


def _finished(shard: _Shard, packed: list[tuple[Utterance, tuple[int, int]]]) -> Iterator[Utterance]:
    path = shard.finish()
    for row, span in packed:
        yield replace(row, audio_filepath=path, offset=0.0, byte_span=span, segment=False)


def _content(row: Utterance, codec: Codec) -> tuple[bytes, str]:
    content = read_bytes(row.audio_filepath, row.byte_span)
    if codec == "keep" and not row.segment:
        name = row.audio_filepath if row.byte_span is None else Path(row.id)
        return content, name.suffix
    with soundfile.SoundFile(io.BytesIO(content)) as sound:
        rate, depth = sound.samplerate, sound.subtype
        sound.seek(round(row.offset * rate))
        deep = depth in ("PCM_24", "PCM_32", "FLOAT", "DOUBLE")
        samples = sound.read(round(row.duration * rate) if row.segment else -1, dtype="int32" if deep else "int16")
    target = io.BytesIO()
    if codec == "opus":
        if rate not in _OPUS_RATES:
            where = f"{row.place}: {location(row.audio_filepath)}"
            raise ValueError(f"{where}: Opus has no rate of {rate} Hz; pack with codec flac.")
        soundfile.write(target, samples, rate, format="OGG", subtype="OPUS")
        return target.getvalue(), ".opus"
    soundfile.write(target, samples, rate, format="FLAC", subtype="PCM_24" if deep else "PCM_16")
    return target.getvalue(), ".flac"
