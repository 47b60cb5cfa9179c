"""Audio files to text with the recogniser of a checkpoint.

Any format and rate that libsndfile reads; several channels are mixed. Each file's line is `path<TAB>text`, in the order
the files were given; with --json an object a line, with times in seconds. A file that cannot be used gets one sentence
on stderr and no line, the others are transcribed all the same, and the exit code is 1. The text does not depend on
--batch-size.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from models.decoding import Hypothesis
    from models.recognizer import Recognizer

# Files are read in windows of so many batches, sorted by length within, so that little of a batch is padding.
WINDOW_BATCHES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a checkpoint that `fit` wrote")
    parser.add_argument("audio", nargs="+", metavar="AUDIO", help="audio files")
    parser.add_argument("--json", action="store_true", help="JSON lines with the time of each word and character")
    parser.add_argument("--batch-size", type=int, default=8, help="files recognised together (default: 8)")
    parser.add_argument("--device", default=None, help="cpu, cuda, cuda:1 (default: cuda where there is one)")


def run(options: argparse.Namespace) -> int:
    """Print a line a file; 1 when a file failed, else 0. Raises ValueError for a checkpoint or device that is none."""
    if options.batch_size < 1:
        raise ValueError(f"--batch-size is {options.batch_size}; give at least 1")
    recognizer = load(options.checkpoint, options.device)
    failed = False
    for path, outcome in transcribe(recognizer, options.audio, options.batch_size):
        if isinstance(outcome, str):
            failed = True
            print(outcome, file=sys.stderr, flush=True)
        else:
            print(_json_line(path, outcome) if options.json else f"{path}\t{outcome.text}", flush=True)
    return int(failed)


def load(checkpoint: Path, device: str | None = None) -> "Recognizer":
    """The recogniser, in evaluation mode, on `device`. Raises ValueError with a sentence about what is wrong."""
    from pickle import UnpicklingError

    from experiments.devices import device_of
    from experiments.run.folder import BEST, is_whole, of_folder
    from models.recognizer import Recognizer

    if not checkpoint.is_file():
        remedy = of_folder(checkpoint) or f"name a checkpoint of `fit`, as {BEST}"
        raise ValueError(f"{checkpoint} is no file; {remedy}")
    if not is_whole(checkpoint):
        raise ValueError(
            f"{checkpoint} is no checkpoint of this recogniser, or half of one (it cannot be read); name one of `fit`"
        )
    place = str(device_of(device))
    try:
        return Recognizer.load_from_checkpoint(checkpoint, map_location=place)
    except (UnpicklingError, EOFError, OSError, RuntimeError, KeyError, TypeError) as error:
        # torch's words on a file that it cannot read advise to load it unsafely.
        unreadable = isinstance(error, UnpicklingError | OSError) or not str(error)
        said = "it cannot be read" if unreadable else str(error).splitlines()[0]
        raise ValueError(f"{checkpoint} is no checkpoint of this recogniser ({said}); name one of `fit`") from error


def transcribe(
    recognizer: "Recognizer", paths: Iterable[str], batch_size: int = 8
) -> "Iterator[tuple[str, Hypothesis | str]]":
    """(path, hypothesis) of each file in the order given; instead of a hypothesis the sentence why there is none."""
    for window in _chunks(paths, WINDOW_BATCHES * batch_size):
        read = [_read(recognizer, path) for path in window]
        outcomes: list[Any] = list(read)
        good = sorted((i for i, samples in enumerate(read) if not isinstance(samples, str)), key=lambda i: len(read[i]))
        for indices in _chunks(good, batch_size):
            for index, hypothesis in zip(indices, _recognize(recognizer, [read[i] for i in indices]), strict=True):
                outcomes[index] = hypothesis
        yield from zip(window, outcomes, strict=True)


def _json_line(path: str, hypothesis: "Hypothesis") -> str:
    spans = {
        kind: [{"text": span.text, "start": round(span.start, 3), "end": round(span.end, 3)} for span in heard]
        for kind, heard in (("words", hypothesis.words), ("characters", hypothesis.characters))
    }
    return json.dumps({"path": path, "text": hypothesis.text, "score": round(hypothesis.score, 4)} | spans)


def _chunks(items: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    rest = iter(items)
    while chunk := tuple(islice(rest, size)):
        yield chunk


def _read(recognizer: "Recognizer", path: str) -> "Tensor | str":
    from data.audio import AudioError, read_audio

    rate = recognizer.network.features.options.sample_rate
    try:
        samples = read_audio(path, sample_rate=rate)
    except AudioError as error:
        # Its remedies are those of a corpus: a manifest's line, a setting. Here there is the file alone.
        fault, _, _ = " ".join(str(error).split()).rpartition("; ")
        return f"{fault}; give another file."
    shortest = recognizer.network.seconds_per_frame
    if len(samples) < shortest * rate:
        return f"{path}: {len(samples) / rate:.4f} s of audio are too short; give at least {shortest:.3f} s."
    return samples


def _recognize(recognizer: "Recognizer", audio: "list[Any]") -> "list[Hypothesis]":
    import torch
    from torch.nn.utils.rnn import pad_sequence

    lengths = torch.tensor([len(samples) for samples in audio])
    return recognizer.transcribe(pad_sequence(audio, batch_first=True), lengths)
