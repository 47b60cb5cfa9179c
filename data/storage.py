"""Where bytes come from: a file, a part of one, or `s3://bucket/shard-00001.tar` and whatever else fsspec reads.

A path of the project is a `Path`, which folds `//`; since local paths are absolute, one that begins with `scheme:/`
can only be such a location. Bytes are read by range, so a shard is never fetched whole.
"""

import os
import re
from functools import lru_cache
from pathlib import Path

from data.extras import missing_package

_REMOTE = re.compile(r"^([a-z][a-z0-9+.-]+):/+")


def is_remote(path: Path) -> bool:
    """Whether the path stands for a location that fsspec reads."""
    written = str(path)
    return not written.startswith("/") and _REMOTE.match(written) is not None


def location(path: Path) -> str:
    """The path in words: as it stands, a remote location with its `//`."""
    return _REMOTE.sub(r"\1://", path.as_posix())


@lru_cache(maxsize=4096)  # the shards of a corpus: the same few for all of its utterances
def path_of(written: str, folder: Path) -> Path:
    """The path of what a manifest or an index of `folder` holds."""
    return Path(written) if _REMOTE.match(written) else folder / written


def why_unreadable(path: Path, error: Exception) -> str:
    """Why a file could not be read as audio, in place of libsndfile's words, which are the same for a folder as for
    noise, and say the path again."""
    if not is_remote(path):
        try:
            path.open("rb").close()
        except IsADirectoryError:
            return "it is a folder"
        except OSError as system:
            return str(system.strerror)
    # libsndfile ends with a full stop.
    return str(getattr(error, "error_string", None) or getattr(error, "strerror", None) or error).rstrip(".")


def read_bytes(path: Path, byte_span: tuple[int, int] | None) -> bytes:
    """The bytes of the span, or all of the file.

    Raises OSError where they cannot be read, and where the file ends before the span does.
    """
    if is_remote(path):
        try:
            import fsspec
        except ModuleNotFoundError as error:
            raise OSError(missing_package(error)) from error
        start, end = (None, None) if byte_span is None else (byte_span[0], sum(byte_span))
        try:
            system, name = fsspec.core.url_to_fs(location(path))
        except (ImportError, ValueError) as error:  # a protocol that fsspec lacks, or whose package is not installed
            raise OSError(f"fsspec says: {error}") from error
        content: bytes = system.cat_file(name, start=start, end=end)
    elif byte_span is None:
        content = path.read_bytes()
    else:
        file = os.open(path, os.O_RDONLY)  # a third of the time that a file object takes
        try:
            content = os.pread(file, byte_span[1], byte_span[0])
        finally:
            os.close(file)
    if byte_span is not None and len(content) < byte_span[1]:
        raise OSError(f"it ends before byte {sum(byte_span)}; copy it again")
    return content
