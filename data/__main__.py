"""`python -m data COMMAND`: what is done to data before a run. Each command imports only what it needs."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from data.entry_point import run_command
from data.importers import KINDS
from data.one_sentence_parser import OneSentenceParser
from data.option_values import count, positive

PROBLEMS_SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 2 for an error that the user can mend."""
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
    except OSError as error:
        what = error.strerror or str(error)
        if error.filename:
            what = f"{error.filename}: {error.strerror}; check the path and its permissions."
        print(f"error: {what}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = OneSentenceParser(
        prog="python -m data",
        description="Make, check and describe speech corpora.",
        epilog="`python -m data COMMAND --help` has an example of each.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    synth = _command(
        commands,
        "synth",
        "Speak a corpus with espeak-ng.",
        "python -m data synth corpora/digits --hours 0.5 --seed 0 --vocabulary digits",
    )
    synth.add_argument("out", type=Path, help="folder of the corpus; an unfinished one is gone on with")
    synth.add_argument("--hours", type=positive, default=0.5, help="hours of speech in all splits (default 0.5)")
    synth.add_argument("--seed", type=int, default=0, help="the corpus is a function of it and the options")
    synth.add_argument("--vocabulary", choices=["digits", "words"], default="digits", help="what is said")
    synth.add_argument("--words", type=Path, help="a file with a word a line to say instead")
    synth.add_argument("--speakers", type=count, default=40, help="speakers of all splits, none in two (default 40)")
    synth.add_argument("--splits", default="train=0.8,dev=0.1,test=0.1", help="shares of hours and speakers")
    synth.add_argument("--jobs", type=count, help="processes (default: one a core)")
    synth.set_defaults(command=_synth)

    validate = _command(
        commands,
        "validate",
        "Find what is wrong with manifests: exit code 0 clean, 1 warnings, 2 errors. Changes nothing.",
        "python -m data validate corpora/an4/train.jsonl corpora/an4/test.jsonl --decode --report findings.json",
    )
    validate.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST", help="manifests or indexes")
    validate.add_argument("--decode", action="store_true", help="read all samples, not headers alone")
    validate.add_argument("--report", type=Path, metavar="FILE", help="write all findings as JSON")
    validate.add_argument("--plots", type=Path, metavar="DIR", help="write plots of durations and characters a second")
    validate.add_argument("--vocabulary", type=Path, help="vocabulary file (default: space, apostrophe, a-z)")
    _add_text_policy(validate)
    validate.add_argument("--sample-rate", type=count, default=16000, help="Hz of the model (default 16000)")
    validate.add_argument("--frame-stride", type=positive, default=0.02, help="seconds between frames at the loss")
    validate.add_argument("--pad-seconds", type=float, default=0.0, help="as pad_seconds in the config")
    validate.add_argument("--max-duration", type=positive, default=35.0, help="seconds above which a line is named")
    validate.add_argument("--jobs", type=count, help="threads (default: one a core)")
    validate.set_defaults(command=_validate)

    import_ = _command(
        commands,
        "import",
        "Write manifests for a corpus of a known layout; its audio stays where it is.",
        "python -m data import librispeech corpora/LibriSpeech manifests/librispeech --case lower",
    )
    import_.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    import_.add_argument("source", type=Path, metavar="SOURCE", help="folder (or file) of the corpus")
    import_.add_argument("out", type=Path, metavar="OUT", help="folder of the manifests")
    _add_text_policy(import_)
    import_.add_argument("--jobs", type=count, help="threads (default: one a core)")
    import_.set_defaults(command=_import)

    index = _command(
        commands,
        "index",
        "Write a memory-mapped index of manifests, and pack their audio into shards where asked.",
        "python -m data index manifests/train.jsonl --output train.arrow --case lower --shards shards --codec flac",
    )
    index.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST")
    index.add_argument("--output", type=Path, required=True, metavar="FILE.arrow", help="configs name it as a manifest")
    index.add_argument("--shards", type=Path, metavar="DIR", help="copy the audio into tar files of this folder")
    index.add_argument("--codec", choices=["keep", "flac", "opus"], default="keep", help="of the shards (default keep)")
    index.add_argument("--shard-megabytes", type=count, default=1024, help="size of a shard (default 1024)")
    _add_text_policy(index)
    index.set_defaults(command=_index)

    benchmark = _command(
        commands,
        "benchmark",
        "Measure index, plan, resume, padding, reading and memory; writes OUT/data_benchmark.json.",
        "python -m data benchmark runs/data-benchmark --rows 6000000",
    )
    benchmark.add_argument("out", type=Path, metavar="OUT")
    benchmark.add_argument("--rows", type=count, default=6_000_000, help="utterances of the index (default 6000000)")
    benchmark.add_argument("--hours", type=positive, default=0.5, help="hours of spoken audio to read (default 0.5)")
    benchmark.add_argument("--workers", type=count, default=2, help="processes that read (default 2)")
    benchmark.add_argument("--epochs", type=count, default=50, help="epochs of the memory curve (default 50)")
    benchmark.set_defaults(command=_benchmark)

    vocabulary = _command(
        commands,
        "vocabulary",
        "Write the characters of manifests' texts, one a line after <blank>.",
        "python -m data vocabulary corpora/an4/train.jsonl --output vocabulary.txt",
    )
    vocabulary.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST")
    vocabulary.add_argument("--output", type=Path, required=True, help="the vocabulary file")
    vocabulary.add_argument("--units", type=count, metavar="N", help="N sub-word units instead of characters")
    _add_text_policy(vocabulary)
    vocabulary.set_defaults(command=_vocabulary)
    return parser


def _command(commands: "argparse._SubParsersAction[OneSentenceParser]", name: str, what: str, example: str):  # type: ignore[no-untyped-def]
    return commands.add_parser(
        name,
        help=what,
        description=what,
        epilog=f"Example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_text_policy(command: argparse.ArgumentParser) -> None:
    command.add_argument("--case", choices=["keep", "lower"], default="keep", help="as text_case in the config")
    command.add_argument("--punctuation", choices=["keep", "remove"], default="keep", help="as in the config")


def _synth(options: argparse.Namespace) -> int:
    from data.synth import Options, SynthError, synthesize

    try:
        splits = tuple((name, float(share)) for name, share in (part.split("=") for part in options.splits.split(",")))
    except ValueError:
        raise SynthError(f"splits is {options.splits!r}; write shares as train=0.8,dev=0.1,test=0.1.") from None
    words: tuple[str, ...] = ()
    if options.words:
        from data.importers.found import numbered_lines

        words = tuple(word for _, line in numbered_lines(options.words) for word in line.split())
        if not words:
            raise SynthError(f"{options.words}: no word in it; write one a line.")
    wanted = Options(options.hours, options.seed, options.vocabulary, words, options.speakers, splits)
    out = synthesize(options.out, wanted, jobs=options.jobs, progress=True)
    for name, _ in splits:
        print(out / f"{name}.jsonl")
    return 0


def _import(options: argparse.Namespace) -> int:
    from rich.progress import track

    from data.import_corpus import import_corpus
    from data.text import Normalizer

    imported = import_corpus(
        options.kind,
        options.source,
        options.out,
        normalizer=Normalizer(case=options.case, punctuation=options.punctuation),
        jobs=options.jobs,
        track=lambda steps, total: track(steps, description="utterances", total=total),
    )
    for path, (utterances, hours) in imported.manifests.items():
        print(f"{path}: {utterances} utterances, {hours:.3f} h")
    for problem in imported.problems[:PROBLEMS_SHOWN]:
        print(f"left out: {problem}", file=sys.stderr)
    if (more := len(imported.problems) - PROBLEMS_SHOWN) > 0:
        print(f"and {more} more; all are in {options.out / 'import.json'}", file=sys.stderr)
    return 1 if imported.problems else 0


def _index(options: argparse.Namespace) -> int:
    from data.index_writer import write_rows
    from data.manifest import ManifestError, Utterance, read_manifest
    from data.shards import pack
    from data.text import Normalizer

    if options.output.suffix != ".arrow":
        raise ManifestError(f"{options.output}: an index is known by its name; let it end in .arrow.")
    rows: Iterable[Utterance] = (row for manifest in options.manifests for row in read_manifest(manifest))
    if options.shards:
        rows = pack(rows, options.shards, codec=options.codec, shard_bytes=options.shard_megabytes << 20)
    number = write_rows(options.output, rows, Normalizer(case=options.case, punctuation=options.punctuation))
    print(f"{options.output}: {number} utterances, {options.output.stat().st_size} bytes")
    return 0


def _benchmark(options: argparse.Namespace) -> int:
    import json

    from data.benchmark import benchmark

    result = benchmark(
        options.out, rows=options.rows, hours=options.hours, workers=options.workers, epochs=options.epochs
    )
    print(json.dumps(result, indent=1))
    return 0


def _validate(options: argparse.Namespace) -> int:
    from rich.progress import track

    from data.findings import exit_code
    from data.text import Normalizer
    from data.validate import Checks, validate
    from data.validation_report import print_tables, write_json, write_plots
    from data.vocabulary import Vocabulary

    checks = Checks(
        vocabulary=Vocabulary.load(options.vocabulary),
        normalizer=Normalizer(case=options.case, punctuation=options.punctuation),
        sample_rate=options.sample_rate,
        frame_stride=options.frame_stride,
        pad_seconds=options.pad_seconds,
        max_duration=options.max_duration,
        decode=options.decode,
    )
    found = validate(
        options.manifests,
        checks,
        jobs=options.jobs,
        track=lambda lines, total: track(lines, description="lines", total=total),
    )
    print_tables(found, checks)
    if options.report:
        write_json(found, checks, options.report)
    if options.plots:
        write_plots(found, options.plots)
    return exit_code(found.findings)


def _vocabulary(options: argparse.Namespace) -> int:
    from data.manifest import read_manifest
    from data.subwords import train
    from data.text import Normalizer
    from data.vocabulary import Vocabulary

    normalizer = Normalizer(case=options.case, punctuation=options.punctuation)
    texts = (normalizer(row.text) for path in options.manifests for row in read_manifest(path))
    vocabulary = Vocabulary(train(texts, options.units)) if options.units else Vocabulary.of_texts(texts)
    vocabulary.save(options.output)
    units = f"{vocabulary.units[:8]} ..." if options.units else repr(vocabulary.characters)
    print(f"{options.output}: {len(vocabulary)} tokens: blank and {units}")
    return 0


if __name__ == "__main__":
    run_command(main)
