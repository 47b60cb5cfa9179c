"""Two ranks are one: gradients, batch statistics, error counts. Real processes, gloo, Lightning's DDP."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from data.batch import Batch, Example, collate
from models.error_rate import ErrorRate
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.recipe import Recipe
from models.recognizer import Recognizer
from models.spec_augment import SpecAugmentOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
CASES = {
    "no batch norm": {"normalization": "none"},
    "synchronised batch norm": {"normalization": "sync_batch"},
    "synchronised batch norm, one rank with nothing to align": {"normalization": "sync_batch", "lame": True},
}


def batches(lame: bool) -> list[Batch]:
    """Two halves of a step of eight; with `lame`, no utterance of the second has frames enough."""
    made = []
    for half in range(2):
        examples = []
        for i in range(4 * half, 4 * half + 4):
            audio = 0.1 * torch.randn(6000 + 500 * i, generator=torch.Generator().manual_seed(i))
            tokens = [2] * 90 if lame and half else [1 + i % 3, 2]
            examples.append(Example(audio, torch.tensor(tokens), f"u{i}"))
        made.append(collate(examples, step_utterances=4 if lame else 8))
    return made


def whole(lame: bool) -> list[Batch]:
    examples = []
    for half in batches(lame):
        for i, name in enumerate(half.utterance_ids):
            audio, tokens = half.audio[i, : half.audio_lengths[i]], half.tokens[i, : half.token_lengths[i]]
            examples.append(Example(audio, tokens, name))
    return [collate(examples, step_utterances=4 if lame else 8)]


def trained(normalization: str, batch: list[Batch], devices: int) -> dict[str, Any]:
    """The model after one step, with the metrics of its epoch."""
    torch.manual_seed(0)
    model = Recognizer(
        num_layers=2,
        hidden_size=16,
        skip_span=1,
        normalization=normalization,  # type: ignore[arg-type]
        characters=" abc",
        max_unalignable_share=1.0,
        features=FeatureOptions(kind="log_mel", mel_bins=20, pad_seconds=0.02, normalization="utterance"),
        front_end=FrontEndOptions(2, (5, 3), (2, 2), (3, 3), (2, 1)),
        spec_augment=SpecAugmentOptions(frequency_masks=0, time_masks=0),
        recipe=Recipe(optimizer="sgd", momentum=0, schedule="constant", learning_rate=0.1, clip_norm=1e9),
    )
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=1,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **quiet,  # type: ignore[arg-type]
    )
    loader = DataLoader(batch, batch_size=None)  # type: ignore[arg-type]
    trainer.fit(model, loader, loader)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name != "val/loss"}
    return {"state": model.state_dict(), "metrics": metrics, "utterances": model.error_counts["val"].utterances}


def rank_of_two(rank: int, port: int, folder: str) -> None:
    """What each process runs; rank 0 leaves its results in `folder`."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        lame = bool(case.get("lame", False))
        results[name] = trained(str(case["normalization"]), [batches(lame)[rank]], devices=2)
    rate = ErrorRate()
    # Five utterances; a sampler that repeats one to fill the ranks up changes nothing.
    for name in ("a", "b", "c") if rank == 0 else ("d", "e", "a"):
        rate.update(name, "x y", "x z")
    counts = rate.compute()
    results["counts"] = (counts.errors, counts.words, counts.utterances)
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    multiprocessing.spawn(rank_of_two, (port, str(folder)), nprocs=2)
    return torch.load(folder / "results.pt", weights_only=True)


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_of_four_are_one_batch_of_eight(name: str, two_ranks: dict[str, Any]) -> None:
    case = CASES[name]
    one = trained(str(case["normalization"]), whole(bool(case.get("lame", False))), devices=1)
    two = two_ranks[name]
    torch.testing.assert_close(two["state"], one["state"], rtol=1e-4, atol=1e-5)
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-4)
    assert two["utterances"] == one["utterances"] == 8


def test_five_utterances_on_two_ranks_count_five(two_ranks: dict[str, Any]) -> None:
    assert two_ranks["counts"] == (5, 10, 5)
