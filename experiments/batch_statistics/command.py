"""Which batch statistics a small mini-batch wants: its own, those of several ranks together, or ones made anew.

Two networks a seed, trained on one card at the same algorithmic batch: `local` normalises each micro-batch of
`--per-device-batch` utterances by itself; `synchronised` normalises `--ranks` of them together, which one process with
micro-batches of their sum computes exactly (`tests/models/test_ranks.py` shows it with two ranks). Each best checkpoint
is then evaluated with the running statistics that training left and with ones re-estimated from the training data
(`models/reestimation.py`), in batches of `--reestimate-batch`, with SpecAugment and without, on dev and test.

Writes batch_statistics.json, table.csv and runs/NAME/ under --output. Runs are resumed and kept, as in every study.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.card import count
from experiments.option_lists import counts

TRAINED = ("local", "synchronised")
EVALUATED = ("running", "re-estimated", "re-estimated, clean")
"""`clean`: without SpecAugment, which training has."""


@dataclass(frozen=True)
class Row:
    """One network with one set of running statistics; loss in nats an utterance, WER as a fraction."""

    seed: int
    trained: str
    evaluated: str
    """One of `EVALUATED`."""
    val_loss: float
    val_wer: float
    test_loss: float
    test_wer: float
    test_words: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m experiments batch-statistics`."""
    parser.add_argument("--config", action="append", required=True, help="the card; several compose, the later wins")
    parser.add_argument("--per-device-batch", type=count, default=4, help="utterances of a micro-batch (default: 4)")
    parser.add_argument("--ranks", type=count, default=4, help="micro-batches of synchronised statistics (default: 4)")
    parser.add_argument("--seeds", type=counts, default=[0, 1, 2], help="default: 0,1,2")
    parser.add_argument("--reestimate-batch", type=count, default=64, help="utterances of a batch (default: 64)")
    parser.add_argument("--reestimate-batches", type=count, default=16, help="that many of them (default: 16)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the card for all")
    parser.add_argument("--reuse-commit", action="store_true", help="keep results of another commit")
    parser.add_argument("--output", type=Path, required=True, help="the study's folder")


def run(options: argparse.Namespace) -> int:
    """Train, evaluate, print, write. Raises ValueError for what cannot be run; 1 where a run did not finish."""
    from experiments.depth.command import fit_arguments
    from experiments.many_runs.progress_board import ProgressBoard
    from experiments.many_runs.resolving import resolve
    from experiments.many_runs.runner import Run, execute
    from experiments.many_runs.slots import machine_slots
    from experiments.run import provenance
    from experiments.run.folder import locked
    from experiments.run.identity import identity
    from experiments.run.result import read_result, write_atomically

    whole = options.per_device_batch * options.ranks
    arguments = {
        (seed, trained): [
            *fit_arguments(options),
            f"--data.global_batch_size={whole}",
            f"--data.per_device_batch_size={options.per_device_batch if trained == 'local' else whole}",
            f"--seed_everything={seed}",
        ]
        for seed in options.seeds
        for trained in TRAINED
    }
    names = {key: f"{key[1]}_seed-{key[0]}" for key in arguments}
    configs = resolve({names[key]: given for key, given in arguments.items()})
    runs = {}
    for key, given in arguments.items():
        config = configs[names[key]]
        config_hash = identity(config)
        folder = options.output / "runs" / f"{names[key]}-{config_hash[:8]}"
        fit = (sys.executable, "-m", "experiments", "fit", *given, "--output", str(folder), "--reuse_commit=false")
        runs[key] = Run(names[key], folder, fit, config, config_hash)
    with locked(options.output):
        slots = machine_slots(1, "cpu")
        commit = provenance.commit()
        execute(list(runs.values()), slots, ProgressBoard(), commit=commit, reuse_commit=options.reuse_commit)
        rows: list[Row] = []
        for (seed, trained), one in runs.items():
            if (read_result(one.folder) or {}).get("status") != "finished":
                print(f"error: {one.folder} did not finish; its log.txt says why", file=sys.stderr)
                return 1
            checkpoint = one.folder / "checkpoints" / "best.ckpt"
            for row in evaluations(checkpoint, one.config["data"], options):
                rows.append(Row(seed, trained, **row))
                print(sentence(rows[-1]), flush=True)
    record = {
        "experiment": "batch-statistics",
        "command": " ".join(["python -m experiments", *sys.argv[1:]]),
        "commit": commit,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": provenance.versions(),
        "per_device_batch_size": options.per_device_batch,
        "ranks": options.ranks,
        "rows": [asdict(row) for row in rows],
    }
    write_atomically(options.output / "batch_statistics.json", json.dumps(record, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(record["rows"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(record["rows"])
    write_atomically(options.output / "table.csv", text.getvalue())
    print_means(rows)
    return 0


def evaluations(checkpoint: Path, data: dict[str, Any], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What `Row` holds of one checkpoint, with running statistics as trained and then re-estimated."""
    from data.datamodule import SpeechDataModule
    from models.recognizer import Recognizer
    from models.reestimation import reestimate_statistics

    recognizer = Recognizer.load_from_checkpoint(checkpoint)
    # A resolved config is JSON, which has no tuples.
    data = data | {key: tuple(data[key]) for key in ("speeds", "noise_snr_db", "gain_db")}
    module = SpeechDataModule(**data)
    module.setup("fit")
    module.setup("test")
    large = SpeechDataModule(
        **data
        | {
            "global_batch_size": options.reestimate_batch,
            "per_device_batch_size": options.reestimate_batch,
            # The first batches of a sorted epoch are its shortest utterances.
            "sorted_first_epoch": False,
        }
    )
    large.setup("fit")
    for evaluated in EVALUATED:
        if evaluated != "running":
            batches = islice(large.train_dataloader(), options.reestimate_batches)
            reestimate_statistics(recognizer.network, batches, augment=evaluated == "re-estimated")
        val_loss, val = evaluate(recognizer, module.val_dataloader())
        test_loss, test = evaluate(recognizer, module.test_dataloader())
        yield {
            "evaluated": evaluated,
            "val_loss": val_loss,
            "val_wer": val.wer,
            "test_loss": test_loss,
            "test_wer": test.wer,
            "test_words": test.words,
        }


def evaluate(recognizer: Any, batches: Any) -> tuple[float, Any]:
    """Mean loss of an utterance and the counts of errors."""
    import torch

    from models.error_rate import ErrorRate
    from models.loss_sums import LossSums

    sums, rate = LossSums(), ErrorRate()
    recognizer.eval()
    for batch in batches[0] if isinstance(batches, list) else batches:
        with torch.no_grad():
            result = recognizer.losses(batch)
        sums.add(result.total, result.usable, batch.audio_lengths)
        hypotheses = recognizer.transcribe(batch.audio, batch.audio_lengths)
        spoken = zip(batch.tokens.tolist(), batch.token_lengths.tolist(), strict=True)
        for name, hypothesis, (tokens, length) in zip(batch.utterance_ids, hypotheses, spoken, strict=True):
            rate.update(name, hypothesis.text, recognizer.vocabulary.decode(tokens[:length]))
    return sums.pool(torch.device("cpu")).mean, rate.compute()


def sentence(row: Row) -> str:
    """One line."""
    return (
        f"seed {row.seed}, {row.trained} statistics in training, {row.evaluated} in evaluation: dev loss "
        f"{row.val_loss:.2f}, WER {100 * row.val_wer:.1f} %; test loss {row.test_loss:.2f}, WER "
        f"{100 * row.test_wer:.1f} % of {row.test_words} words"
    )


def print_means(rows: list[Row]) -> None:
    """Over the seeds."""
    for trained, evaluated in dict.fromkeys((row.trained, row.evaluated) for row in rows):
        chosen = [row for row in rows if (row.trained, row.evaluated) == (trained, evaluated)]
        means = {
            key: sum(getattr(row, key) for row in chosen) / len(chosen)
            for key in ("val_loss", "val_wer", "test_loss", "test_wer")
        }
        print(
            f"mean of {len(chosen)}: {trained}, {evaluated}: dev loss {means['val_loss']:.2f}, WER "
            f"{100 * means['val_wer']:.1f} %; test loss {means['test_loss']:.2f}, WER {100 * means['test_wer']:.1f} %"
        )
