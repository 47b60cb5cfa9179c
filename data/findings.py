"""The kinds of faults that a check of manifests finds, and how much each weighs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["warning", "error"]

# Errors stop a run or make it learn something wrong; warnings are legal and worth knowing.
KINDS: dict[str, Severity] = {
    "manifest-unusable": "error",
    "manifest-line": "error",
    "audio-missing": "error",
    "audio-unreadable": "error",
    "audio-truncated": "error",
    "audio-empty": "error",
    "audio-not-finite": "error",
    "duration-mismatch": "error",
    "unknown-character": "error",
    "unalignable": "warning",
    "several-channels": "warning",
    "other-sample-rate": "warning",
    "silent": "warning",
    "clipped": "warning",
    "empty-text": "warning",
    "text-not-normalised": "warning",
    "speech-rate": "warning",
    "too-long": "warning",
    "same-audio-twice": "warning",
    "leakage": "warning",
    "shared-speaker": "warning",
}


@dataclass(frozen=True)
class Finding:
    """One fault of one line (or, with line 0, of a whole manifest): `message` is a sentence without file and line."""

    kind: str
    manifest: str
    line: int
    id: str
    message: str

    @property
    def severity(self) -> Severity:
        """How much its kind weighs."""
        return KINDS[self.kind]


def exit_code(findings: Iterable[Finding]) -> int:
    """0 clean, 1 warnings, 2 errors."""
    return max(({"warning": 1, "error": 2}[finding.severity] for finding in findings), default=0)
