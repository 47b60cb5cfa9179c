"""A resumed run shows the utterances that the run without a stop shows, in the same order, from any step.

In this process: from the checkpoint of every step of two epochs (the first sorted, the second shuffled). In processes
of their own, marked slow: killed with SIGKILL under 0, 2 and 8 workers, and with another number of ranks.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from data.datamodule import SpeechDataModule
from data.manifest import read_manifest, write_manifest

SCRIPT = Path(__file__).with_name("seen_ids.py")
spec = importlib.util.spec_from_file_location("seen_ids", SCRIPT)
assert spec is not None
assert spec.loader is not None
seen_ids = importlib.util.module_from_spec(spec)
spec.loader.exec_module(seen_ids)

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def manifest(synth_corpus: Path) -> str:
    return str(synth_corpus / "train.jsonl")


@pytest.fixture(scope="module")
def whole(manifest: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lines, Path]:
    """Two epochs without a stop, and the folder of the checkpoints of each step."""
    folder = tmp_path_factory.mktemp("whole")
    return seen_ids.train(manifest, str(folder / "log"), str(folder)), folder


def ids(lines: Lines) -> list[list[str]]:
    return [line["ids"] for line in lines]


def checkpoint(folder: Path, step: int) -> str:
    return str(folder / f"step={step}.ckpt")


def in_a_process(killed: bool = False, **options: Any) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), json.dumps(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode != 0) == killed, done.stderr[-3000:]


def test_from_the_checkpoint_of_any_step_the_rest_is_shown(
    manifest: str, whole: tuple[Lines, Path], tmp_path: Path
) -> None:
    lines, folder = whole
    last = lines[-1]["step"]
    per_epoch = 1 + max(line["step"] for line in lines if line["epoch"] == 0)
    for step in {1, 2, per_epoch - 1, per_epoch, per_epoch + 1, last}:
        rest = seen_ids.train(manifest, str(tmp_path / f"log{step}"), str(tmp_path), resume=checkpoint(folder, step))
        assert ids(rest) == ids([line for line in lines if line["step"] >= step]), step
        assert [line["step"] for line in rest] == [line["step"] for line in lines if line["step"] >= step]


def test_a_run_measured_in_steps_goes_on_too(manifest: str, whole: tuple[Lines, Path], tmp_path: Path) -> None:
    lines, _ = whole
    per_epoch = 1 + max(line["step"] for line in lines if line["epoch"] == 0)
    options: dict[str, Any] = {"max_steps": 2 * per_epoch}
    assert ids(seen_ids.train(manifest, str(tmp_path / "log"), str(tmp_path), **options)) == ids(lines)
    for step in (per_epoch, per_epoch + 2):
        rest = seen_ids.train(
            manifest, str(tmp_path / f"log{step}"), str(tmp_path / "b"), resume=checkpoint(tmp_path, step), **options
        )
        assert ids(rest) == ids([line for line in lines if line["step"] >= step]), step


def test_padded_seconds_go_on_too(manifest: str, tmp_path: Path) -> None:
    lines = seen_ids.train(manifest, str(tmp_path / "log"), str(tmp_path), **seen_ids.BY_SECONDS)
    for step in (2, lines[-1]["step"] - 1):
        rest = seen_ids.train(
            manifest,
            str(tmp_path / f"log{step}"),
            str(tmp_path / "b"),
            resume=checkpoint(tmp_path, step),
            **seen_ids.BY_SECONDS,
        )
        assert ids(rest) == ids([line for line in lines if line["step"] >= step])


def test_each_epoch_shows_every_utterance_and_only_the_last_step_repeats(
    manifest: str, whole: tuple[Lines, Path]
) -> None:
    everyone = {row.id for row in read_manifest(manifest)}
    for epoch in (0, 1):
        lines = [line for line in whole[0] if line["epoch"] == epoch]
        last = lines[-1]["step"]
        before = [name for line in lines if line["step"] < last for name in line["ids"]]
        assert len(before) == len(set(before))
        assert set(before) | {name for line in lines if line["step"] == last for name in line["ids"]} == everyone
        assert {line["n"] for line in lines} == {8}


def test_a_checkpoint_of_other_data_is_refused(manifest: str) -> None:
    def loader(seed: int) -> Any:
        data = SpeechDataModule(manifest, global_batch_size=8, seed=seed)
        data.setup("fit")
        return data.train_dataloader()

    state = loader(0).state_dict()
    loader(0).load_state_dict(state)
    with pytest.raises(ValueError, match="other training data, or with another seed"):
        loader(1).load_state_dict(state)


def test_the_state_is_plain_and_loads_with_weights_only(whole: tuple[Lines, Path]) -> None:
    saved = torch.load(checkpoint(whole[1], 3), weights_only=True)
    (state,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert (state["epoch"], state["step"], state["micro_batches"]) == (0, 3, 12)


def test_a_checkpoint_within_a_step_goes_back_to_its_start(manifest: str) -> None:
    data = SpeechDataModule(manifest, **seen_ids.BY_COUNT)
    data.setup("fit")
    loader = data.train_dataloader()
    batches = [batch.utterance_ids for batch in loader]
    iterator = iter(loader)
    for _ in range(4 + 2):
        next(iterator)
    moved: list[tuple[int, int]] = []
    again = data.train_dataloader()
    again._on_resume = lambda then, now: moved.append((then, now))
    again.load_state_dict(loader.state_dict())
    assert [batch.utterance_ids for batch in again] == batches[4:]
    assert moved == [(6, 4)]
    assert [batch.utterance_ids for batch in again] == batches


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2, 8])
def test_killed_and_resumed_shows_the_same_sequence(
    manifest: str, whole: tuple[Lines, Path], tmp_path: Path, workers: int
) -> None:
    options: dict[str, Any] = {"manifest": manifest, "checkpoints": str(tmp_path), "workers": workers}
    per_epoch = 1 + max(line["step"] for line in whole[0] if line["epoch"] == 0)
    kill_at = per_epoch + 3
    in_a_process(**options, log=str(tmp_path / "killed"), kill_at=kill_at, killed=True)
    kept = max(int(path.stem.split("=")[1]) for path in tmp_path.glob("*.ckpt"))
    assert kept == kill_at
    in_a_process(**options, log=str(tmp_path / "resumed"), resume=checkpoint(tmp_path, kept))
    killed = seen_ids.seen(str(tmp_path / "killed"))
    before = [line for line in killed if line["step"] < kept]
    assert len(killed) == len(before) + 3
    assert ids(before + seen_ids.seen(str(tmp_path / "resumed"))) == ids(whole[0])


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "beyond"), [(2, 1, 2), (2, 4, 2), (1, 2, 0)])
def test_another_number_of_ranks_goes_on_with_the_same_steps(
    manifest: str, whole: tuple[Lines, Path], tmp_path: Path, before: int, after: int, beyond: int
) -> None:
    """No utterance twice in an epoch, none lost: the steps are those of the run on one rank without a stop. From two
    steps into the second epoch, and from the border of the two."""
    per_epoch = 1 + max(line["step"] for line in whole[0] if line["epoch"] == 0)
    kept = per_epoch + beyond
    options: dict[str, Any] = {"manifest": manifest, "checkpoints": str(tmp_path)}
    if before == 1:
        start, shown = checkpoint(whole[1], kept), [line for line in whole[0] if line["step"] < kept]
    else:
        in_a_process(**options, log=str(tmp_path / "first"), devices=before, max_steps=kept)
        start, shown = checkpoint(tmp_path, kept), seen_ids.seen(str(tmp_path / "first"))
    in_a_process(**options, log=str(tmp_path / "second"), devices=after, resume=start)
    assert len(list(tmp_path.glob("second.*.jsonl"))) == after

    def steps(lines: Lines) -> dict[tuple[int, int], list[str]]:
        found: dict[tuple[int, int], list[str]] = defaultdict(list)
        for line in lines:
            found[line["epoch"], line["step"]] += line["ids"]
        return {key: sorted(names) for key, names in found.items()}

    assert steps(shown + seen_ids.seen(str(tmp_path / "second"))) == steps(whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5, 1])
def test_two_ranks_evaluate_each_utterance_once(manifest: str, tmp_path: Path, rows: int) -> None:
    """Five utterances on two ranks count five; of one, a rank has an empty batch and still takes part."""
    wanted = read_manifest(manifest)[:rows]
    write_manifest(tmp_path / "val.jsonl", wanted)
    in_a_process(
        manifest=manifest,
        checkpoints=str(tmp_path),
        log=str(tmp_path / "log"),
        devices=2,
        epochs=1,
        val_manifest=str(tmp_path / "val.jsonl"),
    )
    files = sorted(tmp_path.glob("log.val*.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert len({len(of_rank) for of_rank in lines}) == 1
    assert len(lines) == 2
    evaluated = sorted(name for of_rank in lines for line in of_rank for name in line["ids"])
    assert evaluated == sorted(row.id for row in wanted)
