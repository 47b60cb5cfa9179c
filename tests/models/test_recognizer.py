"""The recogniser in Lightning's hands: loss algebra, metrics, dropped steps, checkpoints."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from data.batch import Batch
from data.vocabulary import Vocabulary
from models.features import FeatureOptions
from models.gradient_norm import NonFiniteGradientsError
from models.recipe import Recipe
from models.recognizer import Recognizer, UnalignableShareError

Make = Callable[..., Any]
UTTERANCES = [(6000 + 500 * i, [2 + i % 3, 2]) for i in range(8)]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*no `val_dataloader`.*"),
    pytest.mark.filterwarnings("ignore:.*tensorboardX.*"),
]


def trainer(**options: Any) -> pl.Trainer:
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return pl.Trainer(accelerator="cpu", devices=1, **(quiet | {"max_epochs": 1} | options))


def loader(*batches: Batch) -> DataLoader[Batch]:
    return DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (2, 2, 2, 2), (5, 3)])
def test_one_batch_of_eight_is_any_accumulation(recognizer: Make, batch: Make, sizes: tuple[int, ...]) -> None:
    def trained(sizes: tuple[int, ...]) -> list[torch.Tensor]:
        model = recognizer(normalization="none", recipe=Recipe(optimizer="sgd", momentum=0, schedule="constant"))
        first, batches = 0, []
        for size in sizes:
            batches.append(batch(*UTTERANCES[first : first + size], first=first, step_utterances=8))
            first += size
        trainer(accumulate_grad_batches=len(sizes)).fit(model, loader(*batches))
        assert model.gradient_norm.norm > 0
        return [*model.parameters(), torch.tensor(model.gradient_norm.norm)]

    torch.testing.assert_close(trained(sizes), trained((8,)), rtol=1e-4, atol=1e-6)


def test_metrics_of_an_epoch_are_totals(recognizer: Make, batch: Make) -> None:
    model = recognizer(max_unalignable_share=0.2)
    sets = [batch(*UTTERANCES[:5]), batch(*UTTERANCES[5:], (400, [3] * 60), first=5)]
    fit = trainer(max_epochs=2)
    fit.fit(model, loader(*sets), loader(*sets))
    assert {"train/loss", "val/loss", "val/wer", "val/cer"} <= set(fit.callback_metrics)
    assert fit.callback_metrics["train/skipped_utterances"] == 1
    model.eval()
    with torch.no_grad():
        results = [model.losses(b) for b in sets]
    total = sum(r.total for r in results) / 8
    assert fit.callback_metrics["val/loss"].item() == pytest.approx(total.item(), rel=1e-4)
    counts = model.error_counts["val"]
    assert counts.utterances == 9, "an utterance that cannot be aligned is still recognised"
    assert counts.characters == 8 * 2 + 60
    assert fit.callback_metrics["val/wer"].item() == pytest.approx(counts.errors / counts.words)
    again = trainer().test(model, loader(*sets), verbose=False)[0]
    assert set(again) == {"test/loss", "test/wer", "test/cer"}
    assert model.error_counts["test"] == counts


def test_a_batch_of_no_utterance_is_one_sentence(recognizer: Make) -> None:
    model = recognizer().eval()
    none = torch.zeros(0, 8000), torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="no utterance; give at least one"):
        model(*none)
    assert model.transcribe(*none) == []


def test_a_checkpoint_keeps_the_sums_of_the_epoch(recognizer: Make, batch: Make, tmp_path: Path) -> None:
    model, path = recognizer(), tmp_path / "sums.ckpt"
    fit = trainer()
    fit.fit(model, loader(batch(*UTTERANCES)))
    mean = model.epoch_loss
    four = batch(*UTTERANCES[:4])
    result = model.losses(four)
    model._training.add(result.total, result.usable, four.audio_lengths)
    model.gradient_norm.load_state({"dropped": 3, "dropped_in_a_row": 0})
    fit.save_checkpoint(path)
    again = recognizer()
    again.trainer = fit
    fit.state.fn = "fit"  # type: ignore[assignment]
    again.on_load_checkpoint(torch.load(path, weights_only=True))
    assert again.epoch_loss == mean
    assert again.dropped_steps == 3
    assert again._training.state() == model._training.state()
    assert again._training.state()[0][1] == 4


def test_half_precision_leaves_audio_whole(recognizer: Make, batch: Make) -> None:
    class Spy(pl.Callback):
        def on_train_batch_start(self, _: pl.Trainer, model: pl.LightningModule, batch: Batch, i: int) -> None:
            assert next(model.parameters()).dtype == torch.bfloat16
            assert batch.audio.dtype == torch.float32

    model = recognizer()
    fit = trainer(precision="bf16-true", callbacks=[Spy()])
    fit.fit(model, loader(batch(*UTTERANCES[:3])))
    assert model.dropped_steps == 0
    assert model.gradient_norm.norm > 0
    assert model.network.stack.layers[0].norm.running_mean.dtype == torch.float32


def test_too_many_unalignable_utterances_stop_training(recognizer: Make, batch: Make) -> None:
    with pytest.raises(UnalignableShareError, match="1 of 2 training utterances"):
        trainer().fit(recognizer(), loader(batch((9000, [1]), (400, [1] * 60))))


@pytest.mark.parametrize("left", [False, True], ids=["by the host", "by the optimiser"])
def test_steps_that_are_not_finite_are_dropped_then_stop_training(
    recognizer: Make, batch: Make, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """On a GPU the optimiser drops them; a fused one can do so here too."""
    monkeypatch.setattr("models.recognizer.steps_on_the_device", lambda optimizer: left)
    good, bad = batch(*UTTERANCES[:2]), batch(*UTTERANCES[:2])
    bad.audio[0, 100] = math.nan
    model = recognizer(recipe=Recipe(max_nonfinite_steps=3))
    fit = trainer()
    fit.fit(model, loader(good, bad, good))
    assert model.dropped_steps == 1
    assert all(torch.isfinite(t).all() for t in model.state_dict().values())
    assert math.isfinite(fit.callback_metrics["train/loss"])
    # Within a window of two micro-batches, one that is not finite drops both.
    model = recognizer()
    before = [p.clone() for p in model.parameters()]
    trainer(accumulate_grad_batches=2).fit(model, loader(good, bad))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(NonFiniteGradientsError):
        trainer().fit(recognizer(recipe=Recipe(max_nonfinite_steps=3)), loader(*[bad] * (3 + left)))


def test_a_checkpoint_needs_no_other_file(recognizer: Make, batch: Make, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("<blank>\n<space>\na\nb\nc\n")
    model = recognizer(
        characters=None,
        vocabulary=str(vocabulary),
        features=FeatureOptions(kind="log_mel", mel_bins=20, pad_seconds=0.07),
    )
    given = batch(*UTTERANCES[:2])
    model.network.features.estimate([(given.audio, given.audio_lengths)])
    fit = trainer()
    fit.fit(model, loader(given))
    fit.save_checkpoint(tmp_path / "it.ckpt", weights_only=True)
    vocabulary.unlink()
    loaded = Recognizer.load_from_checkpoint(tmp_path / "it.ckpt")
    assert not loaded.training
    assert loaded.vocabulary == model.vocabulary
    assert loaded.hparams == model.hparams
    assert loaded.network.features.options.pad_seconds == 0.07
    assert torch.equal(loaded.network.features.mean, model.network.features.mean)
    expected = model.eval().transcribe(given.audio, given.audio_lengths)
    assert loaded.transcribe(given.audio, given.audio_lengths) == expected
    (tmp_path / "other.ckpt").write_bytes((tmp_path / "it.ckpt").read_bytes())
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="not a recogniser's checkpoint"):
        Recognizer.load_from_checkpoint(tmp_path / "other.ckpt")


def test_corpus_statistics_come_from_the_training_data(recognizer: Make, batch: Make) -> None:
    given = [batch(*UTTERANCES[:3]), batch(*UTTERANCES[3:], first=3)]

    class Corpus(pl.LightningDataModule):
        def train_dataloader(self) -> DataLoader[Batch]:
            return loader(*given)

    options = FeatureOptions(kind="log_mel", mel_bins=20, normalization="corpus", statistics_batches=1)
    model = recognizer(features=options)
    with pytest.raises(ValueError, match=r"features\.estimate"):
        trainer().fit(model, loader(*given))
    trainer().fit(model, datamodule=Corpus())
    expected = recognizer(features=options).network.features
    expected.estimate([(given[0].audio, given[0].audio_lengths)])
    assert torch.equal(model.network.features.mean, expected.mean)


@pytest.mark.parametrize("wrong", [{"vocabulary": Vocabulary("xyz")}, {"sample_rate": 8000}])
def test_data_of_another_language_are_refused(recognizer: Make, wrong: dict[str, Any]) -> None:
    class Corpus(pl.LightningDataModule):
        vocabulary = Vocabulary(" abc")
        sample_rate = 16_000

    corpus = Corpus()
    for name, value in wrong.items():
        setattr(corpus, name, value)
    with pytest.raises(ValueError, match=f"data.{next(iter(wrong))} differ"):
        trainer().fit(recognizer(), datamodule=corpus)


def test_what_experiments_ask(recognizer: Make) -> None:
    model = recognizer()
    assert model.eval().transcribe(torch.zeros(0, 0), torch.zeros(0, dtype=torch.int64)) == []
    assert model.plan().backend == "reference"
    assert model.num_parameters == sum(p.numel() for p in model.parameters())
    with pytest.raises(ValueError, match="clip_norm"):
        model.configure_gradient_clipping(None, gradient_clip_val=1.0)


@pytest.mark.slow
def test_overfits_three_utterances(recognizer: Make, batch: Make) -> None:
    given = batch((8000, [2, 3, 1, 4]), (9000, [4, 4, 1, 2, 2]), (7000, [3]))
    model = recognizer(
        hidden_size=32, recipe=Recipe(learning_rate=0.01, schedule="constant", warmup_share=0, weight_decay=0)
    )
    optimizer = model.recipe.optimizer_for(model)
    model.train()
    for _ in range(120):
        loss = model.losses(given).total / 3
        loss.backward()
        model.gradient_norm.apply(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.5
    assert [h.text for h in model.eval().transcribe(given.audio, given.audio_lengths)] == ["ab c", "cc aa", "b"]
