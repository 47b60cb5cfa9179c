"""Checkpoints, divergence and the trial of the longest batch, each by itself."""

import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import nn

from data.batch import Batch
from data.loader import outlive_one_signal
from experiments.run.callbacks.checkpoints import BestCheckpoint, RenamedIntoPlace
from experiments.run.callbacks.divergence import Divergence
from experiments.run.callbacks.longest_batch import LongestBatch
from experiments.run.callbacks.position import Position
from experiments.run.callbacks.step_seed import StepSeed
from experiments.run.callbacks.termination import Termination
from experiments.run.folder import RunFolder
from experiments.run.recorder import Recorder
from experiments.run.result import Result
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.recognizer import Recognizer


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_wer_that_is_not_finite_is_never_best(tmp_path: Path, value: float) -> None:
    best = BestCheckpoint(tmp_path)
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(reduce_boolean_decision=bool))
    assert not best.check_monitor_top_k(trainer, torch.tensor(value)), "not even as the first"
    assert best.check_monitor_top_k(trainer, torch.tensor(1.0))


def test_the_best_so_far_is_known_again_where_its_file_lies(tmp_path: Path) -> None:
    before, moved = tmp_path / "before", tmp_path / "moved"
    best = BestCheckpoint(before)
    best.best_model_score, best.best_model_path = torch.tensor(0.2), str(before / "best.ckpt")
    again: Any = BestCheckpoint(moved)
    again.load_state_dict(best.state_dict())
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(reduce_boolean_decision=bool))
    assert again.check_monitor_top_k(trainer, torch.tensor(0.9)), "there is no checkpoint yet, so any is best"
    moved.mkdir()
    (moved / "best.ckpt").touch()
    again.load_state_dict(best.state_dict())
    assert not again.check_monitor_top_k(trainer, torch.tensor(0.9)), "a moved folder keeps its best"
    assert again.check_monitor_top_k(trainer, torch.tensor(0.1))


def test_a_kill_during_a_save_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    whole = RenamedIntoPlace()
    whole.save_checkpoint({"step": 1}, path)

    def killed(checkpoint: Any, file: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        whole.save_checkpoint({"step": 2}, path)
    monkeypatch.undo()
    assert whole.load_checkpoint(path, weights_only=True) == {"step": 1}
    whole.save_checkpoint({"step": 3}, path)
    assert whole.load_checkpoint(path, weights_only=True) == {"step": 3}


def judged(losses: list[float], **options: Any) -> Divergence:
    divergence = Divergence(**options)
    for loss in losses:
        divergence.judge(loss)
    return divergence


def test_a_loss_that_doubles_has_diverged() -> None:
    assert judged([1.0] * 10 + [1.9] * 20, window=10).reason is None
    told = judged([1.0] * 10 + [2.1] * 10, window=10).reason
    assert told is not None
    assert "2.10 times" in told


def test_one_bad_step_is_not_divergence() -> None:
    assert judged([1.0] * 10 + [1.0] * 9 + [5.0] + [1.0] * 9, window=10).reason is None
    assert judged([1.0] * 10 + [math.nan, math.inf] * 20, window=10).reason is None


def test_a_resumed_run_judges_as_the_uninterrupted_one() -> None:
    before = judged([1.0] * 10 + [2.5] * 9, window=10)
    assert before.reason is None
    resumed = Divergence(window=10)
    resumed.load_state_dict(before.state_dict())
    resumed.judge(2.5)
    assert resumed.reason is not None


def test_steps_not_read_yet_are_judged_after_a_resumption() -> None:
    trainer: Any = SimpleNamespace(global_step=0, world_size=1, should_stop=False)

    def train(divergence: Divergence, losses: list[float]) -> None:
        for loss in losses:
            trainer.global_step += 1
            divergence.on_train_batch_end(trainer, model, {"loss": torch.tensor(loss)}, batch, 0)

    model: Any = SimpleNamespace(device=torch.device("cpu"))
    batch: Any = SimpleNamespace(step_utterances=1, audio_lengths=torch.tensor([1]))
    losses = [1.0] * 10 + [1.0] * 5 + [9.0] * 5
    whole, first, second = (Divergence(window=10, factor=4.5) for _ in range(3))
    train(whole, losses)
    assert whole.reason is not None
    trainer.global_step = 0
    train(first, losses[:17])
    assert first.reason is None
    second.load_state_dict(first.state_dict())
    second.on_train_start(trainer, model)
    train(second, losses[17:])
    assert second.reason == whole.reason
    third = Divergence()
    third.load_state_dict(second.state_dict())
    trainer.should_stop = False
    third.on_fit_start(trainer, model)
    assert trainer.should_stop, "what has diverged is not trained on"
    third.load_state_dict(Divergence().state_dict())
    assert third.reason == whole.reason, "the best checkpoint was saved before"


def test_a_checkpoint_that_does_not_say_where_it_stands_is_refused() -> None:
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn="fit"))
    with pytest.raises(ValueError, match=r"older version.*--resume never"):
        Position().on_load_checkpoint(trainer, cast(Any, None), {"callbacks": {}, "loops": {}})
    trainer.state.fn = "test"
    Position().on_load_checkpoint(trainer, cast(Any, None), {"callbacks": {}, "loops": {}})


def test_random_numbers_of_a_step_follow_from_its_place() -> None:
    def drawn(seed: int = 0, epoch: int = 0, rank: int = 0, batch: int = 0) -> float:
        trainer: Any = SimpleNamespace(current_epoch=epoch, global_rank=rank)
        StepSeed(seed).on_train_batch_start(trainer, cast(Any, None), None, batch)
        return float(torch.rand(()))

    with torch.random.fork_rng(devices=[]):
        places = [{}, {"seed": 1}, {"epoch": 1}, {"rank": 1}, {"batch": 1}]
        numbers = [drawn(**place) for place in places]
        torch.rand(7)
        assert [drawn(**place) for place in places] == numbers
        assert len(set(numbers)) == len(numbers)


def test_a_signal_is_noted_and_heeded_between_steps() -> None:
    loop = SimpleNamespace(_should_accumulate=lambda: accumulating)
    fit = SimpleNamespace(epoch_loop=loop, max_steps=-1, _can_stop_early=True)
    state = SimpleNamespace(fn="fit")
    strategy = SimpleNamespace(reduce_boolean_decision=lambda told, all: told)
    trainer: Any = SimpleNamespace(
        fit_loop=fit, state=state, strategy=strategy, should_stop=False, global_step=3, world_size=1
    )
    nothing: Any = None
    before = signal.getsignal(signal.SIGTERM)
    termination = Termination()
    accumulating = False
    with termination.listening():
        termination.on_train_batch_end(trainer, nothing, nothing, nothing, 0)
        for _ in range(2):  # a second signal while the first is heeded does no harm
            os.kill(os.getpid(), signal.SIGTERM)
        accumulating = True
        termination.on_train_batch_end(trainer, nothing, nothing, nothing, 0)
        accumulating, trainer.should_stop = False, True
        termination.on_train_batch_end(trainer, nothing, nothing, nothing, 0)
        trainer.should_stop = False
        for hook in (
            termination.on_train_batch_end,
            termination.on_validation_batch_end,
            termination.on_test_batch_end,
        ):
            with pytest.raises(SIGTERMException):
                hook(trainer, nothing, nothing, nothing, 0)
        trainer.world_size = 2  # several ranks ask one another every tenth step
        termination.on_train_batch_end(trainer, nothing, nothing, nothing, 0)
        trainer.global_step = 10
        with pytest.raises(SIGTERMException):
            termination.on_train_batch_end(trainer, nothing, nothing, nothing, 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_loaders_worker_outlives_the_signal_to_its_group() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        outlive_one_signal(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one ends it"
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("options", [{"window": 0}, {"factor": 0.0}])
def test_divergence_settings_are_positive(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Divergence(**options)


def model() -> Recognizer:
    torch.manual_seed(0)
    return Recognizer(
        num_layers=2,
        hidden_size=16,
        dropout=0.5,
        features=FeatureOptions(kind="log_mel", mel_bins=20, normalization="utterance"),
        front_end=FrontEndOptions(channels=2, first_kernel=(5, 5), second_kernel=(5, 5)),
    )


def batch() -> Batch:
    audio = torch.randn(2, 16000, generator=torch.Generator().manual_seed(1)) * 0.1
    return Batch(
        audio, torch.tensor([16000, 9000]), torch.tensor([[5, 6], [7, 0]]), torch.tensor([2, 1]), ["a", "b"], 0, 2
    )


def trial(recognizer: Recognizer) -> LongestBatch:
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(batch_to_device=lambda b: b),
        datamodule=SimpleNamespace(longest_batch=batch),
        precision_plugin=SimpleNamespace(forward_context=torch.enable_grad),
        precision="32-true",
    )
    longest = LongestBatch()
    longest.on_train_start(trainer, recognizer)
    return longest


def test_the_trial_of_the_longest_batch_leaves_nothing_behind() -> None:
    recognizer = model()
    before = {name: value.clone() for name, value in recognizer.state_dict().items()}
    random_state = torch.get_rng_state()
    longest = trial(recognizer)
    assert longest.saved_bytes is not None
    assert longest.saved_bytes > (longest.saved_bytes_per_layer or 0) > 0
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in recognizer.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in recognizer.parameters())


def test_a_batch_that_does_not_fit_tells_the_numbers_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    recognizer = model()
    before = {name: value.clone() for name, value in recognizer.named_buffers()}

    def full(module: nn.Module, inputs: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    recognizer.network.stack.register_forward_pre_hook(full)
    with pytest.raises(torch.OutOfMemoryError, match=r"2 utterances of 16000 samples.*per_device_batch_size.*GiB"):
        trial(recognizer)
    assert all(torch.equal(value, before[name]) for name, value in recognizer.named_buffers())


@pytest.mark.parametrize("at", ["first batch", "later"])
def test_a_run_out_of_memory_tells_the_remedy(at: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation for PYTORCH_CUDA_ALLOC_CONF"
    error: BaseException = torch.OutOfMemoryError(said)
    if at == "first batch":
        recognizer = model()

        def full(module: nn.Module, inputs: Any) -> None:
            raise torch.OutOfMemoryError(said)

        recognizer.network.stack.register_forward_pre_hook(full)
        with pytest.raises(torch.OutOfMemoryError) as raised:
            trial(recognizer)
        error = raised.value
    recorder = Recorder(RunFolder(tmp_path, "a" * 64, None), Result("demo", {}, "a" * 64, 0))
    reason = recorder.end(error).reason
    assert reason is not None
    for remedy in ("per_device_batch_size", "memory_policy to recompute", "python -m experiments memory"):
        assert reason.count(remedy) == 1
    assert "Tried to allocate 2.00 GiB" in reason
    assert "PYTORCH_CUDA_ALLOC_CONF" not in reason
