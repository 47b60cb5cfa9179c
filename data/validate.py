"""One pass over manifests that finds what would stop a run or make it learn something wrong.

Each line is parsed, its text encoded, its audio's header read; with `decode` all samples are read too, which alone
finds truncated files, NaN, silence and clipping. Across lines and manifests: the same audio twice, the same audio or
speaker in two splits. Nothing is changed.
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path

import soundfile

from data.corpus import read_corpus
from data.findings import Finding
from data.manifest import ManifestError, Utterance, scan_manifest
from data.sound_facts import SoundFacts, sound_facts
from data.storage import is_remote, location, why_unreadable
from data.text import Normalizer
from data.vocabulary import Vocabulary

SILENT = 1e-3  # peak: -60 dB of full scale
CLIPPED_SAMPLES = 10


@dataclass(frozen=True)
class Checks:
    """What is asked of the manifests; seconds and Hz.

    `frame_stride` is the time between two frames at the loss, `pad_seconds` what is added at both ends before
    features, `duration_tolerance` how far a manifest may be from the audio, `rate_limits` the characters a second
    that are likely.
    """

    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    normalizer: Normalizer = field(default_factory=Normalizer)
    sample_rate: int = 16000
    frame_stride: float = 0.02
    pad_seconds: float = 0.0
    max_duration: float = 35.0
    duration_tolerance: float = 0.1
    rate_limits: tuple[float, float] = (0.5, 30.0)
    decode: bool = False


@dataclass
class Line:
    """A line that could be parsed, with what is known of its audio."""

    manifest: str
    number: int
    utterance: Utterance
    text: str
    sound: SoundFacts | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: str, message: str) -> None:
        """Note a fault of this line."""
        self.findings.append(Finding(kind, self.manifest, self.number, self.utterance.id, message))


@dataclass
class Validation:
    """All lines that could be parsed, and every finding in the order of manifests and lines."""

    manifests: list[str]
    lines: list[Line]
    findings: list[Finding]


def validate(
    manifests: Iterable[str | Path],
    checks: Checks,
    *,
    jobs: int | None = None,
    track: Callable[[Iterator[Line], int], Iterable[Line]] = lambda lines, total: lines,
) -> Validation:
    """Check manifests against `checks` with `jobs` threads (None: one a core). `track` sees the lines pass, to show
    progress.

    A manifest that cannot be opened, or has no utterance, is a finding as any other.
    """
    names = [str(path) for path in manifests]
    lines: list[Line] = []
    findings: list[Finding] = []
    for name in names:
        seen = False
        try:
            for number, row in _rows(name):
                seen = True
                if isinstance(row, Utterance):
                    lines.append(Line(name, number, row, checks.normalizer(row.text)))
                else:
                    findings.append(Finding("manifest-line", name, number, "", row.split(": ", 1)[1]))
        except ManifestError as error:
            findings.append(Finding("manifest-unusable", name, 0, "", str(error).split(": ", 1)[1]))
            continue
        if not seen:
            findings.append(Finding("manifest-unusable", name, 0, "", "no utterance; write one JSON object a line."))
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        for line in track(pool.map(lambda line: _check_line(line, checks), lines), len(lines)):
            findings += line.findings
    findings += _repeated(lines)
    findings += _shared_speakers(names, lines)
    order = {name: i for i, name in enumerate(names)}
    findings.sort(key=lambda finding: (order[finding.manifest], finding.line))
    return Validation(names, lines, findings)


def _rows(name: str) -> Iterator[tuple[int, Utterance | str]]:
    """Lines of a manifest, or rows of an index counted from 1."""
    if not name.endswith(".arrow"):
        return scan_manifest(name)
    corpus = read_corpus(name)
    return ((row + 1, corpus[row]) for row in range(len(corpus)))


def _check_line(line: Line, checks: Checks) -> Line:
    _check_text(line, checks)
    try:
        line.sound = sound_facts(line.utterance.audio_filepath, line.utterance.byte_span, decode=checks.decode)
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        path = line.utterance.audio_filepath
        missing = not is_remote(path) and not path.exists()
        what = "there is no such file" if missing else f"it cannot be read ({why_unreadable(path, error)})"
        line.add("audio-missing" if missing else "audio-unreadable", f"{location(path)}: {what}.")
        return line
    _check_sound(line, line.sound, checks)
    return line


def _check_text(line: Line, checks: Checks) -> None:
    row, text = line.utterance, line.text
    if not text:
        line.add("empty-text", "the text is empty, which trains on silence; take the line out if that is not meant.")
        return
    if row.text != " ".join(row.text.split()):
        line.add("text-not-normalised", "white space at an end or several in a row; it will be read as single spaces.")
    if complaint := checks.vocabulary.complaint([text]):
        line.add("unknown-character", complaint)
    frames = int((row.duration + 2 * checks.pad_seconds) / checks.frame_stride + 1e-6)
    needed = len(text) + sum(a == b for a, b in pairwise(text))
    if needed > frames:
        line.add(
            "unalignable",
            f"{len(text)} characters need {needed} frames and {frames} are there; training leaves it out.",
        )
    rate = len(text) / row.duration
    low, high = checks.rate_limits
    if not low <= rate <= high:
        line.add("speech-rate", f"{rate:.1f} characters a second; listen whether the text is that of the audio.")


def _check_sound(line: Line, sound: SoundFacts, checks: Checks) -> None:
    row = line.utterance
    if not sound.frames:
        line.add("audio-empty", f"{location(row.audio_filepath)}: no samples; replace the file or take out its line.")
        return
    if sound.decoded and sound.readable < sound.frames:
        line.add("audio-truncated", f"{sound.readable} of {sound.frames} samples can be read; replace the file.")
    surplus = sound.seconds - row.offset - row.duration
    if -surplus > checks.duration_tolerance or (surplus > checks.duration_tolerance and not row.segment):
        line.add(
            "duration-mismatch",
            f"the manifest says {row.duration:.3f} s, the audio has {sound.seconds - row.offset:.3f} s; mend the one.",
        )
    if sound.channels > 1:
        line.add("several-channels", f"{sound.channels} channels; they are mixed unless channel says otherwise.")
    if sound.sample_rate != checks.sample_rate:
        line.add("other-sample-rate", f"{sound.sample_rate} Hz; resampled to {checks.sample_rate} Hz at each reading.")
    if row.duration > checks.max_duration:
        line.add("too-long", f"{row.duration:.1f} s, above {checks.max_duration:g} s; split it, or set max_duration.")
    if not sound.finite:
        line.add("audio-not-finite", "NaN or infinite samples; write the file anew.")
    elif sound.readable == sound.frames and sound.peak < SILENT:
        loud = f"the peak is {20 * math.log10(sound.peak):.0f} dB of full scale" if sound.peak else "all samples are 0"
        line.add("silent", f"{loud}; take the line out if speech is missing.")
    elif sound.decoded and sound.clipped > CLIPPED_SAMPLES:
        line.add("clipped", f"{sound.clipped} samples at full scale; record at a lower level if you can.")


def _repeated(lines: list[Line]) -> Iterator[Finding]:
    """The same stretch of the same content again, in its own manifest or in another: leakage between splits."""
    first: dict[tuple[str, float], Line] = {}
    for line in lines:
        if line.sound is None or not line.sound.seconds:
            continue
        key = (line.sound.content, line.utterance.offset)
        seen = first.setdefault(key, line)
        if seen is line:
            continue
        message = f"the audio is that of {seen.manifest}:{seen.number} ({seen.utterance.id})"
        kind = "same-audio-twice" if seen.manifest == line.manifest else "leakage"
        yield Finding(kind, line.manifest, line.number, line.utterance.id, f"{message}; keep one of them.")


def _shared_speakers(names: list[str], lines: list[Line]) -> Iterator[Finding]:
    speakers: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.utterance.speaker is not None:
            speakers[line.manifest].add(line.utterance.speaker)
    for one, other in combinations(names, 2):
        if shared := sorted(speakers[one] & speakers[other]):
            message = f"{len(shared)} speakers are in {one} too, such as {', '.join(shared[:3])}"
            yield Finding("shared-speaker", other, 0, "", f"{message}; results will not be speaker-independent.")
