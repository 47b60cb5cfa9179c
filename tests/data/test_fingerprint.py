"""What manifests said is recorded, so that any change of them is noticed and named, and nothing else is a change."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.datamodule import SpeechDataModule
from data.fingerprint import contents_of, difference
from data.index_writer import write_rows
from data.manifest import ManifestError, Utterance, write_manifest
from data.synthetic_index import write_synthetic_index

Rows = list[Utterance]
ROWS = [
    Utterance(Path(f"a{i}.wav"), 1.0 + i, text, f"id{i}", offset=0.5 * i, byte_span=(512 * (i + 1), 100), segment=True)
    for i, text in enumerate(("one", "two", "two three", ""))
]


def first(**fields: Any) -> Callable[[Rows], Rows]:
    return lambda rows: [replace(rows[0], **fields), *rows[1:]]


CHANGES: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "a row less": (lambda rows: rows[:-1], "had 4 utterances and has 3, with other ids"),
    "a row more": (lambda rows: [*rows, replace(rows[0], id="new")], "had 4 utterances and has 5"),
    "another text": (first(text="ore"), "had 4 utterances and has 4, with other texts"),
    "texts exchanged": (
        lambda rows: [replace(rows[0], text="two"), replace(rows[1], text="one"), *rows[2:]],
        "with other texts",
    ),
    "a word moved to the next text": (
        lambda rows: [*rows[:2], replace(rows[2], text="two"), replace(rows[3], text=" three")],
        "with other texts",
    ),
    "another duration": (first(duration=1.0000001), "with other durations"),
    "another id": (first(id="other"), "with other ids"),
    "another offset": (first(offset=0.25), "with other places"),
    "other bytes of a shard": (first(byte_span=(513, 100)), "with other places"),
    "another order": (lambda rows: rows[::-1], "with other ids, durations, texts and places"),
}


def written(folder: Path, rows: Rows, kind: str) -> dict[str, Any]:
    """The settings that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [replace(row, audio_filepath=folder.absolute() / row.audio_filepath) for row in rows]
    name = f"train.{kind}"
    write_manifest(folder / name, rows) if kind == "jsonl" else write_rows(folder / name, rows)
    return {"root": str(folder), "train_manifest": name, "val_manifest": None, "num_workers": 0}


@pytest.mark.parametrize("kind", ["jsonl", "arrow"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed_and_named(change: str, kind: str, tmp_path: Path) -> None:
    changed, words = CHANGES[change]
    then = contents_of(written(tmp_path, ROWS, kind))
    now = contents_of(written(tmp_path, changed(ROWS), kind))  # in place, as a person edits it
    said = difference(then, now)
    assert said.startswith("train had ")
    # An index keeps ids beside the place of the audio.
    assert words in said or (kind == "arrow" and said == f"train had 4 utterances and has 4, {words} and places")


@pytest.mark.parametrize("kind", ["jsonl", "arrow"])
def test_a_corpus_that_moved_is_the_same(kind: str, tmp_path: Path) -> None:
    then = contents_of(written(tmp_path / "here", ROWS, kind))
    shutil.move(tmp_path / "here", tmp_path / "there")
    now = contents_of({"root": str(tmp_path / "there"), "train_manifest": f"train.{kind}"})
    assert now == then
    assert difference(then, now) == ""


def test_how_a_manifest_is_written_changes_nothing(tmp_path: Path) -> None:
    settings = written(tmp_path, ROWS, "jsonl")
    then, path = contents_of(settings), tmp_path / "train.jsonl"
    lines = [json.dumps(dict(reversed(json.loads(line).items()))) for line in path.read_text().splitlines()]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    assert contents_of(settings) == then


def test_manifests_of_a_list_are_one_split(tmp_path: Path) -> None:
    whole = contents_of(written(tmp_path, ROWS, "jsonl"))
    for name, rows in (("a", ROWS[:2]), ("b", ROWS[2:])):
        written(tmp_path / name, rows, "jsonl")
    settings = {"root": str(tmp_path), "train_manifest": ["a/train.jsonl", "b/train.jsonl"]}
    assert contents_of(settings) == whole


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none\.jsonl"):
        contents_of({"root": str(tmp_path), "test_manifest": "none.jsonl"})


def test_only_splits_of_both_are_compared() -> None:
    one, other = ({"rows": rows, "ids": "a", "durations": "b", "texts": str(rows), "places": "d"} for rows in (1, 2))
    assert difference({"train": one}, {"train": one, "test": other}) == ""
    assert difference({"train": one, "test": one}, {"train": one}) == ""
    assert difference({"train": one, "val": one}, {"train": other, "val": other}).count("with other texts") == 2


@pytest.mark.parametrize("change", CHANGES)
def test_a_loader_goes_on_only_with_what_its_state_was_made_of(change: str, tmp_path: Path) -> None:
    def loader(rows: Rows) -> Any:
        data = SpeechDataModule(**written(tmp_path, rows, "jsonl"), global_batch_size=2, per_device_batch_size=2)
        data.setup("fit")
        assert data.contents == contents_of({"root": str(tmp_path), "train_manifest": "train.jsonl"})
        return data.train_dataloader()

    state = loader(ROWS).state_dict()
    loader(ROWS).load_state_dict(state)
    with pytest.raises(ValueError, match="other training data"):
        loader(CHANGES[change][0](ROWS)).load_state_dict(state)


def test_what_was_read_stays_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = written(tmp_path, ROWS, "jsonl")
    then = contents_of(settings)
    monkeypatch.setattr("data.fingerprint.read_corpus", lambda paths: pytest.fail("read again"))
    assert contents_of(settings) == then


@pytest.mark.alone
def test_six_million_rows_take_seconds(tmp_path: Path) -> None:
    rows = 200_000
    write_synthetic_index(tmp_path / "train.arrow", rows)
    start = time.process_time()
    contents_of({"root": str(tmp_path), "train_manifest": "train.arrow"})
    assert (time.process_time() - start) * 6_000_000 / rows < 6
