"""A folder of compiled kernels that survives damage, races and kills.

A file is its content's SHA-256 digest, the length of the log, the log, the image. It is written aside and renamed into
place while its builder holds an operating-system lock, and one whose digest does not match is no file at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def default_cache() -> Path:
    """``$PRNN_EXT_CACHE``, else ``prnn_ext`` in the user's XDG cache folder."""
    if named := os.environ.get("PRNN_EXT_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "prnn_ext"


def read(path: Path) -> tuple[bytes, str] | None:
    """The image and log stored at ``path``, or None where there are none or they are not what was written."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, content = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    log_bytes = int.from_bytes(content[:4], "little")
    return content[4 + log_bytes :], content[4 : 4 + log_bytes].decode()


def write(path: Path, image: bytes, log: str) -> None:
    """Store at ``path``; another process sees all of it or nothing. Raises ``OSError`` where that cannot be done."""
    text = log.encode()
    content = len(text).to_bytes(4, "little") + text + image
    number, aside = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        # mkstemp hides the file from other users, who may share the cache.
        Path(aside).chmod(0o644)
        Path(aside).replace(path)
    finally:
        Path(aside).unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of ``path``, one process at a time; the operating system releases it when its holder dies.

    Makes the folder. Raises ``OSError`` where it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
