"""The embedded corpus: any number of hours of speech, spoken by espeak-ng, from a seed.

    OUT/corpus.json                   seed and options; the corpus is a function of them, byte for byte
    OUT/train.jsonl dev.jsonl test.jsonl
    OUT/audio/<split>/<speaker>/<number>.flac     16 kHz, 16 bit

A speaker is a language of espeak-ng, a variant of its voice, a rate, a pitch and a melody, all constant; no language
and variant together occur in two splits. Every utterance has its own level, a low noise, and a moment of that noise
at both ends. Each speaker is written by one task, whose manifest is renamed into place at its end: a second call goes
on where a killed one stopped, and the result does not depend on the number of processes.
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from data import espeak, sentences
from data.manifest import Utterance, read_manifest, write_manifest

VERSION = 1  # of what a seed means: raised when the same options would give other bytes
SAMPLE_RATE = 16000
LANGUAGES = ("en", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc", "en-029")
# fmt: off
VARIANTS = (
    "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2",
    "f3", "f4", "f5", "Alex", "Andy", "Annie", "Gene", "Lee", "Mario", "Michael",
    "Mike", "Reed", "adam", "anika", "antonio", "belinda", "benjamin", "caleb", "david", "ed",
    "edward", "grandpa", "ian", "iven", "john", "linda", "max", "norbert", "paul", "pedro",
    "quincy", "rob", "robert", "sandro", "steph", "steph2", "steph3", "travis", "victor", "zac",
)
# fmt: on


class SynthError(ValueError):
    """Options that make no corpus, or a folder that holds something else."""


@dataclass(frozen=True)
class Options:
    """`hours` are of all splits together; `splits` are their shares; `speakers` of all splits together."""

    hours: float = 0.5
    seed: int = 0
    vocabulary: Literal["digits", "words"] = "digits"
    words: tuple[str, ...] = ()
    speakers: int = 40
    splits: tuple[tuple[str, float], ...] = (("train", 0.8), ("dev", 0.1), ("test", 0.1))

    def __post_init__(self) -> None:
        most = len(LANGUAGES) * len(VARIANTS)
        if not self.hours > 0:
            raise SynthError(f"hours is {self.hours}; give the hours of speech, above zero.")
        if not len(self.splits) <= self.speakers <= most:
            raise SynthError(f"speakers is {self.speakers}; give {len(self.splits)} (one a split) to {most}.")
        if not self.splits or any(share <= 0 for _, share in self.splits):
            raise SynthError(f"splits is {dict(self.splits)}; name shares above zero, as train=0.8,dev=0.1,test=0.1.")
        if len({name for name, _ in self.splits}) < len(self.splits):
            raise SynthError("splits names a split twice; name each once, as train=0.8,dev=0.1,test=0.1.")


@dataclass(frozen=True)
class Speaker:
    """One speaker of one split, with the seconds to say."""

    id: str
    split: str
    number: int
    seconds: float
    voice: espeak.Voice


def synthesize(out: str | Path, options: Options, *, jobs: int | None = None, progress: bool = False) -> Path:
    """Write the corpus of `options` to the folder `out`, with `jobs` processes (None: one a core); returns the folder.

    Raises SynthError where the folder holds other files or a corpus of other options.
    """
    out = Path(out).absolute()
    _claim(out, options)
    parts = out / "parts"
    everyone = speakers_of(options)
    if not all((out / f"{name}.jsonl").exists() for name, _ in options.splits):
        missing = [speaker for speaker in everyone if not (parts / f"{speaker.id}.jsonl").exists()]
        for _ in _track(_spoken(missing, out, options, jobs or os.cpu_count() or 1), len(missing), progress):
            pass
        for name, _ in options.splits:
            rows = [row for s in everyone if s.split == name for row in read_manifest(parts / f"{s.id}.jsonl")]
            write_manifest(out / f"{name}.jsonl", (_with_default_id(row, out) for row in rows))
    shutil.rmtree(parts, ignore_errors=True)
    return out


def _claim(out: Path, options: Options) -> None:
    # Through JSON and back, so that tuples compare equal to the lists in the file.
    wanted = json.loads(json.dumps({"version": VERSION, **asdict(options)}))
    description = out / "corpus.json"
    if description.exists():
        try:
            found = json.loads(description.read_text(encoding="utf-8"))
        except ValueError as error:
            raise SynthError(f"{description}: not JSON ({error}); name another folder, or delete this one.") from error
        if found != wanted:
            other = ", ".join(f"{k}={found.get(k)!r}" for k in wanted if found.get(k) != wanted[k])
            raise SynthError(f"{out} holds a corpus with {other}; name another folder, or delete this one.")
    elif out.exists() and not out.is_dir():
        raise SynthError(f"{out} is a file; name a folder.")
    elif out.exists() and any(out.iterdir()):
        raise SynthError(f"{out} is not empty and holds no corpus of this command; name another folder.")
    else:
        out.mkdir(parents=True, exist_ok=True)
        partial = description.with_suffix(".partial")
        partial.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
        partial.replace(description)


def speakers_of(options: Options) -> list[Speaker]:
    """The speakers of all splits: at least one a split, the rest by its share, each with an equal part of its hours."""
    random = np.random.default_rng([options.seed, 0])
    names = [f"{language}+{variant}" for language in LANGUAGES for variant in VARIANTS]
    names = [names[i] for i in random.permutation(len(names))]
    total = sum(share for _, share in options.splits)
    numbers = [max(1, round(options.speakers * share / total)) for _, share in options.splits]
    numbers[int(np.argmax(numbers))] += options.speakers - sum(numbers)
    speakers: list[Speaker] = []
    for (split, share), number in zip(options.splits, numbers, strict=True):
        for _ in range(number):
            voice = espeak.Voice(
                name=names[len(speakers)],
                rate=int(random.integers(130, 191)),
                pitch=int(random.integers(30, 71)),
                pitch_range=int(random.integers(30, 81)),
                word_gap=int(random.integers(0, 6)),
            )
            seconds = 3600 * options.hours * share / total / number
            speakers.append(Speaker(f"s{len(speakers):04d}", split, len(speakers), seconds, voice))
    return speakers


def _spoken(speakers: list[Speaker], out: Path, options: Options, jobs: int) -> Iterator[None]:
    if jobs == 1 or len(speakers) < 2:
        for speaker in speakers:
            _speak_all(speaker, out, options)
            yield
        return
    with ProcessPoolExecutor(min(jobs, len(speakers)), multiprocessing.get_context("spawn")) as pool:
        for task in as_completed([pool.submit(_speak_all, speaker, out, options) for speaker in speakers]):
            yield task.result()


def _speak_all(speaker: Speaker, out: Path, options: Options) -> None:
    """All utterances of a speaker, then their manifest."""
    folder = out / "audio" / speaker.split / speaker.id
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Utterance] = []
    spoken = 0.0
    while spoken < speaker.seconds:
        random = np.random.default_rng([options.seed, 1, speaker.number, len(rows)])
        text = _text(random, options)
        samples = _recorded(espeak.speak(text, speaker.voice, seed=len(rows)), random)
        path = folder / f"{len(rows):05d}.flac"
        soundfile.write(path, samples, SAMPLE_RATE, subtype="PCM_16")
        rows.append(Utterance(path, len(samples) / SAMPLE_RATE, text, path.as_posix(), speaker.id))
        spoken += len(samples) / SAMPLE_RATE
    write_manifest(out / "parts" / f"{speaker.id}.jsonl", rows)


def _text(random: np.random.Generator, options: Options) -> str:
    if options.words:
        return sentences.of_words(random, list(options.words))
    return sentences.digits(random) if options.vocabulary == "digits" else sentences.sentence(random)


def _recorded(spoken: NDArray[np.int16], random: np.random.Generator) -> NDArray[np.int16]:
    """At 16 kHz, at a level of -24 to -6 dB, with noise 30 to 50 dB below and 0.05 to 0.25 s of it at both ends."""
    voice = _at_16_khz(spoken.astype(np.float64))
    voice *= 10 ** (random.uniform(-24, -6) / 20) / max(1.0, float(np.abs(voice).max()))
    before, after = (int(SAMPLE_RATE * random.uniform(0.05, 0.25)) for _ in range(2))
    level = float(np.abs(voice).max()) * 10 ** (random.uniform(-50, -30) / 20)
    whole = np.pad(voice, (before, after))
    whole += level * random.standard_normal(len(whole))
    return np.round(np.clip(whole, -1, 1) * 32767).astype(np.int16)


def _at_16_khz(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """22,050 to 16,000 Hz = 441 to 320, by leaving out what is above 8 kHz in the spectrum of the whole utterance."""
    samples = np.pad(samples, (0, -len(samples) % 441))
    number = len(samples) // 441 * 320
    return np.fft.irfft(np.fft.rfft(samples)[: number // 2 + 1], number) * (320 / 441)


def _with_default_id(row: Utterance, out: Path) -> Utterance:
    return Utterance(
        row.audio_filepath, row.duration, row.text, row.audio_filepath.relative_to(out).as_posix(), row.speaker
    )


def _track(steps: Iterator[None], total: int, progress: bool) -> Iterator[None]:
    if not progress:
        return steps
    from rich.progress import track

    return iter(track(steps, description="speakers", total=total))
