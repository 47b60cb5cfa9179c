"""The DataModule: what it refuses at the start, what it leaves out, what it hands out on each rank."""

import itertools
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import soundfile
import torch

from data.audio import AudioError
from data.datamodule import SpeechDataModule
from data.manifest import Utterance, read_manifest, write_manifest
from data.vocabulary import VocabularyError


class Model(pl.LightningModule):
    """Knows frames of 20 ms, and counts what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.shown: dict[str, list[str]] = {"train": [], "val": [], "test": []}
        self.epochs: set[int] = set()

    def output_lengths(self, audio_lengths: torch.Tensor) -> torch.Tensor:
        return audio_lengths // 320

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.shown["train"] += batch.utterance_ids
        self.epochs.add(batch.epoch)
        return (self.weight * batch.audio.mean()).sum()

    def validation_step(self, batch: Any, index: int) -> None:
        self.shown["val"] += batch.utterance_ids

    def test_step(self, batch: Any, index: int) -> None:
        self.shown["test"] += batch.utterance_ids

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(data: SpeechDataModule, **options: Any) -> Model:
    model = Model()
    pl.Trainer(
        accelerator="cpu",
        accumulate_grad_batches=options.pop("accumulate", data.accumulate_grad_batches(1)),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0.0 if data.manifests["val"] is None else 1.0,
        **options,
    ).fit(model, data)
    return model


pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Eight noisy seconds "ab", and their manifest."""
    rows = []
    for i in range(8):
        path = tmp_path / f"{i}.wav"
        soundfile.write(path, np.random.default_rng(i).uniform(-0.5, 0.5, 16000 + 100 * i), 16000)
        rows.append(Utterance(path, 1 + i / 160, "ab", f"{i}.wav"))
    write_manifest(tmp_path / "m.jsonl", rows)
    return tmp_path / "m.jsonl"


def rewrite(manifest: Path, row: int, **changes: Any) -> None:
    rows = [{f: getattr(u, f) for f in Utterance.__dataclass_fields__} for u in read_manifest(manifest)]
    rows[row].update(changes)
    write_manifest(manifest, [Utterance(**fields) for fields in rows])


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_shows_every_utterance_of_every_epoch_in_its_order(synth_corpus: Path, workers: int) -> None:
    data = SpeechDataModule(
        "train.jsonl",
        "dev.jsonl",
        root=str(synth_corpus),
        num_workers=workers,
        global_batch_size=8,
        per_device_batch_size=4,
    )
    model = fit(data, max_epochs=2)
    train = [row.id for row in read_manifest(synth_corpus / "train.jsonl")]
    dev = [row.id for row in read_manifest(synth_corpus / "dev.jsonl")]
    assert model.epochs == {0, 1}
    for epoch in (0, 1):
        plan = data.plan(epoch)
        half = len(model.shown["train"]) // 2
        assert model.shown["train"][epoch * half :][:half] == [train[row] for row in plan.rows]
        assert set(model.shown["train"][epoch * half :][:half]) == set(train)
    assert sorted(model.shown["val"]) == sorted(2 * dev)


def test_what_is_handed_out_is_audio_and_tokens_of_the_manifest(corpus: Path) -> None:
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=2)
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [2, 2, 2, 2]
    assert {batch.step_utterances for batch in batches} == {4}
    assert batches[0].tokens.tolist() == [[3, 4], [3, 4]]
    assert batches[0].audio_lengths.tolist() == [16000, 16100]
    whole, _ = soundfile.read(corpus.with_name("0.wav"), dtype="float32")
    assert np.array_equal(batches[0].audio[0, :16000].numpy(), whole)
    assert not batches[0].audio[0, 16000:].any()


def test_cached_or_not_the_samples_are_the_same(corpus: Path) -> None:
    def samples(**options: Any) -> list[torch.Tensor]:
        data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=2, **options)
        data.setup("fit")
        loader = data.train_dataloader()
        return [batch.audio for _ in range(2) for batch in loader]

    for cached, read in zip(samples(cache_audio_seconds=100), samples(cache_audio_seconds=0), strict=True):
        assert torch.equal(cached, read)


def test_ranks_share_an_epoch_without_overlap(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = SpeechDataModule(str(corpus), str(corpus), global_batch_size=4, per_device_batch_size=1)
    data.setup("fit")
    shown, evaluated = [], []
    for rank in range(2):
        monkeypatch.setattr(data, "_rank", lambda rank=rank: (rank, 2))
        loader = data.train_dataloader()
        assert len(loader) == 4
        shown.append([name for batch in loader for name in batch.utterance_ids])
        evaluated.append([name for batch in data.val_dataloader() for name in batch.utterance_ids])
    everyone = [f"{i}.wav" for i in range(8)]
    assert sorted(itertools.chain(*shown)) == everyone
    assert sorted(itertools.chain(*evaluated)) == everyone


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"global_batch_size": None}, "global_batch_size is None"),
        ({"per_device_batch_size": 0}, "per_device_batch_size is 0"),
        ({"seconds_per_batch": 60.0}, "global_batch_size is given together with seconds_per_batch"),
        ({"micro_batches_per_step": 4}, "micro_batches_per_step is given together with global_batch_size"),
        (
            {"global_batch_size": None, "per_device_batch_size": None, "seconds_per_batch": 60.0},
            "micro_batches_per_step is None",
        ),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(sizes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SpeechDataModule(**sizes)


def test_accumulation_follows_from_the_ranks_and_must_divide() -> None:
    data = SpeechDataModule(global_batch_size=32, per_device_batch_size=8)
    assert [data.accumulate_grad_batches(ranks) for ranks in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(
        ValueError, match="global_batch_size 32 is not a multiple of per_device_batch_size 8 x 3 ranks = 24"
    ):
        data.accumulate_grad_batches(3)
    seconds = SpeechDataModule(
        global_batch_size=None, per_device_batch_size=None, seconds_per_batch=60.0, micro_batches_per_step=8
    )
    assert seconds.accumulate_grad_batches(4) == 2
    with pytest.raises(ValueError, match="does not divide among 3 ranks"):
        seconds.accumulate_grad_batches(3)


def test_a_trainer_that_accumulates_otherwise_is_refused(corpus: Path) -> None:
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=2)
    with pytest.raises(ValueError, match=r"set trainer\.accumulate_grad_batches to 2"):
        fit(data, max_epochs=1, accumulate=1)


@pytest.mark.parametrize(
    ("text", "named"), [("AB", "set text_case to lower"), ("a5", "'5'.*data vocabulary"), ("naïve", "'ï'")]
)
def test_text_outside_the_vocabulary_fails_at_the_start(corpus: Path, text: str, named: str) -> None:
    rewrite(corpus, 3, text=text)
    with pytest.raises(VocabularyError, match=rf"train_manifest: .*{named}"):
        SpeechDataModule(str(corpus)).setup("fit")
    with pytest.raises(VocabularyError, match="val_manifest"):
        SpeechDataModule(None, str(corpus)).setup("fit")


def test_lower_case_is_a_policy_for_every_split(corpus: Path) -> None:
    rewrite(corpus, 0, text="A\u2019B")
    data = SpeechDataModule(str(corpus), global_batch_size=8, per_device_batch_size=8, text_case="lower")
    data.setup("fit")
    (batch,) = data.train_dataloader()
    assert batch.tokens[0].tolist() == [3, 2, 4]


def test_what_cannot_be_aligned_is_left_out_counted_and_named(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(corpus, 2, text="a" * 26)  # 26 + 25 repeats = 51 frames needed; 1.0125 s are 50
    rewrite(corpus, 3, text="ab" * 25)  # 50 needed of 50
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=4, skipped_share_limit=0.2)
    with caplog.at_level(logging.WARNING):
        model = fit(data, max_epochs=1)
    assert data.unalignable_ids == ["2.wav"]
    assert "1 of 8 training utterances (0.000 h, 12.5%)" in caplog.text
    assert set(model.shown["train"]) == {f"{i}.wav" for i in range(8)} - {"2.wav"}


def test_above_the_limit_training_stops_with_the_remedy(corpus: Path) -> None:
    rewrite(corpus, 2, text="a" * 26)
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=4)
    with pytest.raises(ValueError, match=r"above skipped_share_limit=0\.01: lower the frame stride, raise pad_seconds"):
        fit(data, max_epochs=1)


def test_evaluation_leaves_nothing_out(corpus: Path) -> None:
    rewrite(corpus, 2, text="a" * 60)
    data = SpeechDataModule(None, str(corpus), evaluation_batch_size=3)
    data.setup("validate")
    assert sorted(name for batch in data.val_dataloader() for name in batch.utterance_ids) == [
        f"{i}.wav" for i in range(8)
    ]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])  # torch waits 5 s a failed worker
def test_unusable_audio_stops_the_run_with_its_path(corpus: Path, workers: int) -> None:
    corpus.with_name("5.wav").write_bytes(b"nothing")
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=4, num_workers=workers)
    data.setup("fit")
    with pytest.raises(AudioError, match=r"5\.wav: the audio cannot be read"):
        list(data.train_dataloader())


def test_unusable_audio_is_left_out_up_to_a_limit(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus.with_name("5.wav").write_bytes(b"nothing")
    options: dict[str, Any] = {"global_batch_size": 4, "per_device_batch_size": 4, "audio_error_limit": 2}
    data = SpeechDataModule(str(corpus), **options)
    data.setup("fit")
    shown = [name for batch in data.train_dataloader() for name in batch.utterance_ids]
    assert len(shown) == 7
    assert "left out (1 of at most 2)" in caplog.text
    for i in (6, 7):
        corpus.with_name(f"{i}.wav").unlink()
    data = SpeechDataModule(str(corpus), **options)
    data.setup("fit")
    with pytest.raises(AudioError):
        list(data.train_dataloader())


def test_a_duration_that_disagrees_is_an_error_and_nothing_is_padded(corpus: Path) -> None:
    rewrite(corpus, 1, duration=2.0)
    data = SpeechDataModule(str(corpus), global_batch_size=8, per_device_batch_size=8)
    data.setup("fit")
    with pytest.raises(AudioError, match=r"1\.wav: .* s of audio where 2\.000 s are expected"):
        list(data.train_dataloader())


def test_long_utterances_are_left_out_by_max_duration(corpus: Path) -> None:
    data = SpeechDataModule(str(corpus), global_batch_size=2, per_device_batch_size=2, max_duration=1.02)
    data.setup("fit")
    assert {name for batch in data.train_dataloader() for name in batch.utterance_ids} == {
        "0.wav",
        "1.wav",
        "2.wav",
        "3.wav",
    }
    with pytest.raises(ValueError, match="none of 8 utterances is left"):
        SpeechDataModule(str(corpus), max_duration=0.5).setup("fit")


def test_an_utterance_that_its_slowest_speed_makes_too_long_is_refused_at_the_start(corpus: Path) -> None:
    sizes: dict[str, Any] = {"global_batch_size": None, "per_device_batch_size": None, "micro_batches_per_step": 2}
    SpeechDataModule(str(corpus), **sizes, seconds_per_batch=1.1).setup("fit")
    SpeechDataModule(str(corpus), **sizes, seconds_per_batch=1.1, speeds=(1.1,)).setup("fit")
    with pytest.raises(ValueError, match=r"longer than seconds_per_batch=1\.1 .the longest: 1\.16 s"):
        SpeechDataModule(str(corpus), **sizes, seconds_per_batch=1.1, speeds=(0.9, 1.1)).setup("fit")


def test_steps_that_vary_need_loaders_that_are_made_anew(corpus: Path) -> None:
    data = SpeechDataModule(
        str(corpus),
        global_batch_size=None,
        per_device_batch_size=None,
        seconds_per_batch=3.0,
        micro_batches_per_step=2,
        speeds=(0.5, 1.0, 2.0),
    )
    with pytest.raises(ValueError, match=r"set trainer\.reload_dataloaders_every_n_epochs to 1"):
        fit(data, max_epochs=1)
    model = fit(data, max_epochs=6, reload_dataloaders_every_n_epochs=1)
    steps = [len(data.plan(epoch)) for epoch in range(6)]
    assert len(set(steps)) > 1
    assert len(model.shown["train"]) == sum(len(data.plan(epoch).rows) for epoch in range(6))


def test_a_speed_that_leaves_too_few_frames_is_not_taken(corpus: Path) -> None:
    rewrite(corpus, 3, text="ab" * 25)  # 50 frames needed of 50
    data = SpeechDataModule(str(corpus), global_batch_size=8, per_device_batch_size=8, speeds=(1.5, 2.0))
    model = fit(data, max_epochs=1)
    assert set(model.shown["train"]) == {f"{i}.wav" for i in range(8)}
    (batch,) = data.train_dataloader()
    lengths = dict(zip(batch.utterance_ids, batch.audio_lengths.tolist(), strict=True))
    assert lengths.pop("3.wav") == 16300
    assert all(length < 12000 for length in lengths.values())


def test_the_share_of_padding_is_that_of_the_batches_handed_out(corpus: Path) -> None:
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=4)
    data.setup("fit")
    assert data.padding_share is None
    batches = list(data.train_dataloader())
    padded = sum(batch.audio.numel() for batch in batches)
    speech = sum(int(batch.audio_lengths.sum()) for batch in batches)
    assert data.padding_share == pytest.approx(1 - speech / padded, abs=1e-6)
    assert 0 < data.padding_share < 1


def test_the_longest_batch_is_of_the_longest(corpus: Path) -> None:
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=2, speeds=(0.9, 1.1))
    data.setup("fit")
    assert data.longest_batch().audio.shape == (2, -(-16700 * 10 // 9))
    plain = SpeechDataModule(
        str(corpus), global_batch_size=4, per_device_batch_size=2, sorted_first_epoch=False, max_duration=1.03
    )
    plain.setup("fit")
    assert plain.longest_batch().audio_lengths.tolist() == [16300, 16400]


def test_speeds_are_drawn_for_each_epoch_and_utterance_in_training_alone(corpus: Path) -> None:
    def lengths(epoch: int, **options: Any) -> dict[str, int]:
        data = SpeechDataModule(
            str(corpus), str(corpus), global_batch_size=8, per_device_batch_size=4, speeds=(0.9, 1.0, 1.1), **options
        )
        data.setup("fit")
        loader = data.train_dataloader()
        loader.sampler.set_epoch(epoch)
        for batch in data.val_dataloader():
            for name, samples in zip(batch.utterance_ids, batch.audio_lengths, strict=True):
                assert int(samples) == 16000 + 100 * int(name[0])
        return {
            name: int(samples)
            for batch in loader
            for name, samples in zip(batch.utterance_ids, batch.audio_lengths, strict=True)
        }

    first = lengths(0)
    allowed = {i: {round((16000 + 100 * i) / speed) for speed in (0.9, 1.0, 1.1)} for i in range(8)}
    assert all(min(abs(samples - a) for a in allowed[int(name[0])]) <= 1 for name, samples in first.items())
    assert first == lengths(0) == lengths(0, num_workers=2)
    assert lengths(1) != first
    assert lengths(0, seed=1) != first


def test_speeds_of_other_forms_are_refused() -> None:
    for speed in (0.1, 3.0, 0.955):
        with pytest.raises(ValueError, match=f"speeds holds {speed}"):
            SpeechDataModule(speeds=(1.0, speed))


def test_a_split_that_is_not_given_says_so() -> None:
    data = SpeechDataModule()
    data.setup("test")
    with pytest.raises(ValueError, match="test_manifest is not given"):
        data.test_dataloader()


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_run_and_says_so(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any, **__: Any) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr("data.dataset.read_audio", dies)
    data = SpeechDataModule(str(corpus), global_batch_size=4, per_device_batch_size=4, num_workers=2)
    data.setup("fit")
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (exited unexpectedly|is killed by signal)"):
        list(data.train_dataloader())
    assert time.monotonic() - start < 30
