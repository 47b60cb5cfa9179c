"""A run that is cut short at any hook, by SIGTERM or by a kill, ends as the undisturbed one does, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.run.curves import read_metrics

ROOT = Path(__file__).parents[2]
OF_TIME = {"wall_seconds", "audio_seconds_per_second", "step_ms", "started", "config"}
DIVERGED, STOPPED, KILLED = 3, 4, 77
OPTIONS = [
    "--synth.output=null",
    "--wandb.mode=disabled",
    "--trainer.accelerator=cpu",
    "--trainer.log_every_n_steps=2",
    "--model.num_layers=2",
    "--model.hidden_size=32",
    "--model.dropout=0.2",
    "--model.features.kind=log_mel",
    "--model.features.mel_bins=40",
    "--model.front_end.channels=2",
    "--model.recipe.learning_rate=3e-3",
    "--data.train_manifest=train.jsonl",
    "--data.val_manifest=dev.jsonl",
    "--data.test_manifest=test.jsonl",
    "--data.skipped_share_limit=0.5",
    "--data.global_batch_size=4",
    "--data.evaluation_batch_size=4",
]
# 3 epochs of 3 steps of 2 micro-batches; 3 batches in a validation, 2 in the test.
BY_EPOCH = ["--trainer.devices=1", "--data.per_device_batch_size=2", "--trainer.max_epochs=3"]
TERMINATED = {
    "before:on_fit_start": [1],
    "before:on_train_start": [1],
    "before:on_train_epoch_start": [2],
    "before:on_train_batch_start": [1, 9],
    "before:on_before_optimizer_step": [5],
    "before:on_train_batch_end": [3, 12, 18],
    "after:on_train_batch_end": [4, 18],
    "before:on_validation_start": [1, 3],
    "before:on_validation_batch_start": [5],
    "before:on_validation_batch_end": [1, 5, 7, 9],
    "before:on_validation_epoch_end": [2],
    "after:on_validation_end": [2, 3],
    "before:on_train_epoch_end": [1],
    "after:on_train_epoch_end": [1, 3],
    "before:on_train_end": [1],
    "before:on_fit_end": [1],
    "before:on_test_start": [1],
    "before:on_test_batch_end": [1, 2],
    "before:on_test_end": [1],
}
BY_EPOCH_KILLED = {
    "before:on_train_batch_end": [1],
    "after:on_train_batch_end": [4, 12, 18],
    "before:on_validation_batch_end": [5],
    "after:on_validation_end": [3],
    "after:on_train_epoch_end": [2, 3],
    "before:on_test_batch_end": [1],
}
INTERRUPTED = {"before:on_train_batch_end": [9], "before:on_validation_batch_end": [5]}
RARELY_SAVED_KILLED = {"after:on_train_batch_end": [5, 14], "before:on_validation_batch_end": [5]}
# A validation every 3 micro-batches, half of them within an accumulation; the end lies within the third epoch.
BY_STEP = [
    "--trainer.devices=1",
    "--data.per_device_batch_size=2",
    "--trainer.max_epochs=-1",
    "--trainer.max_steps=8",
    "--trainer.val_check_interval=0.5",
]
BY_STEP_TERMINATED = {
    "before:on_train_batch_end": [5, 7],
    "before:on_validation_batch_end": [1, 5, 14],
    "after:on_validation_end": [2],
    "after:on_train_epoch_end": [1, 3],
}
BY_STEP_KILLED = {"after:on_train_batch_end": [6, 10, 16], "after:on_train_epoch_end": [1, 3]}
# Diverged, in the eyes of such a judge, at the end of the second epoch.
DIVERGING = [*BY_EPOCH, "--divergence.window=2", "--divergence.factor=1e-6"]
DIVERGING_TERMINATED = {"before:on_train_batch_end": [3, 6, 8, 12], "before:on_test_batch_end": [1]}
DIVERGING_KILLED = {"after:on_train_batch_end": [6, 8], "after:on_train_epoch_end": [2]}
TWO_RANKS = [
    "--trainer.devices=2",
    "--trainer.strategy=ddp",
    "--data.per_device_batch_size=2",
    "--trainer.max_epochs=2",
]
TWO_RANKS_TERMINATED = {"before:on_train_batch_end": [2], "before:on_validation_batch_end": [1, 3]}


def cases(how: str, places: dict[str, list[int]]) -> list[tuple[str, str, int]]:
    return [(how, place, at) for place, calls in places.items() for at in calls]


def interrupted(corpus: Path, folder: Path, options: list[str], chosen: list[Any], ranks: int = 1) -> dict[str, Any]:
    """What `interrupted_fits.py` says of it."""
    few = folder / "corpus"
    few.mkdir()
    for split, number in (("train", 12), ("dev", 10), ("test", 8)):
        rows = [json.loads(line) for line in (corpus / f"{split}.jsonl").read_text().splitlines()[:number]]
        rows = [row | {"audio_filepath": str(corpus / row["audio_filepath"])} for row in rows]
        (few / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"options": [*OPTIONS, f"--data.root={few}", *options], "folder": str(folder), "ranks": ranks}
    told = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interrupted_fits.py")), json.dumps(given | {"cases": chosen})],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(told.stdout))


def differences(whole: Path, cut: Path) -> list[str]:
    """All but what measures time must be equal: result, log, errors by utterance, the best checkpoint's weights."""
    one, other = (json.loads((folder / "result.json").read_text()) for folder in (whole, cut))
    found = [f"{key}: {other[key]} for {one[key]}" for key in one if key not in OF_TIME and one[key] != other[key]]
    lines = [
        [line for line in read_metrics(folder / "metrics.jsonl") if not any(key.startswith("perf/") for key in line)]
        for folder in (whole, cut)
    ]
    if lines[0] != lines[1]:
        found.append(f"log: {[line for line in lines[1] if line not in lines[0]]}, {len(lines[1])} lines")
    if (whole / "test_errors.csv").read_text() != (cut / "test_errors.csv").read_text():
        found.append("test_errors.csv")
    best = [
        torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"] for folder in (whole, cut)
    ]
    return found + [name for name, value in best[0].items() if not torch.equal(value, best[1][name])]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute where nothing else runs
@pytest.mark.parametrize("way", ["by epoch", "by step", "diverging", "two ranks"])
def test_a_run_cut_short_at_any_hook_ends_as_the_undisturbed_one(way: str, synth_corpus: Path, tmp_path: Path) -> None:
    options, terminated, killed = {
        "by epoch": (BY_EPOCH, TERMINATED, BY_EPOCH_KILLED),
        "by step": (BY_STEP, BY_STEP_TERMINATED, BY_STEP_KILLED),
        "diverging": (DIVERGING, DIVERGING_TERMINATED, DIVERGING_KILLED),
        "two ranks": (TWO_RANKS, TWO_RANKS_TERMINATED, {}),
    }[way]
    chosen = cases("TERM", terminated) + cases("KILL", killed)
    if way == "by epoch":
        chosen += cases("INT", INTERRUPTED) + cases("RARE KILL", RARELY_SAVED_KILLED)
    ranks = 2 if way == "two ranks" else 1
    told = interrupted(synth_corpus, tmp_path, options, chosen, ranks)
    codes, said = told.pop("whole")
    end = DIVERGED if way == "diverging" else 0
    assert codes == [end] * ranks, said
    assert "site-packages" not in said, f"a library's warning: {said}"
    wrong = {}
    for number, ((first, said), (second, said_again)) in told.items():
        how, place, at = chosen[int(number)]
        # A signal that comes when all is done but the writing of the result changes nothing.
        ends = {KILLED} if "KILL" in how else {STOPPED} | ({0} if "test_end" in place else set())
        if not set(first) <= ends or set(second) != {end}:
            wrong[f"{how} {place} {at}"] = f"{first} {said} -> {second} {said_again}"
        elif found := differences(tmp_path / "whole", tmp_path / number):
            wrong[f"{how} {place} {at}"] = "; ".join(found)
        elif "site-packages" in said_again:
            wrong[f"{how} {place} {at}"] = f"a library's warning: {said_again}"
        elif set(first) == {STOPPED} and "goes on from" not in said_again:
            wrong[f"{how} {place} {at}"] = f"began anew: {said_again}"
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
