"""Where a result comes from: the commit of the code, the versions of what it stands on, the device it ran on."""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("torch", "pytorch-lightning", "torchaudio", "numpy")


def commit() -> str | None:
    """The checkout's commit, with `-dirty` when a tracked file differs from it; None outside a git checkout."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return None
    return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head


def versions() -> dict[str, str]:
    """Python and the libraries whose version can move a number."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def device_name(kind: str) -> str:
    """The name of the GPU (`kind` cuda) or of the processor."""
    if kind == "cuda":
        import torch

        return torch.cuda.get_device_name()
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return f"CPU {line.partition(':')[2].strip()}"
    return f"CPU {platform.processor() or platform.machine()}"


def facts_of(kind: str) -> dict[str, str]:
    """What stands above a table that a command measured here, now, on a device of `kind` (cuda or cpu)."""
    return {
        "device": device_name(kind),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit() or "not a git checkout",
        "command": " ".join(["python -m experiments", *sys.argv[1:]]),
        **versions(),
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _git(*arguments: str) -> str | None:
    """Git's answer about this checkout, or None where git or the checkout is missing."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=20
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
