"""Augmentation: a function of (seed, epoch, id), lengths kept, ratios right, never in evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from data.augmentation import Augmentation, add_noise, reverberate, sounds_of
from data.datamodule import SpeechDataModule
from data.speed import SpeedPerturbation, key, uniform

AUDIO = torch.from_numpy(np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """noises/ of 8 and 16 kHz, rooms/ with a direct sound at sample 40."""
    root = tmp_path_factory.mktemp("sounds")
    for kind in ("noises", "rooms"):
        (root / kind / "sub").mkdir(parents=True)
    random = np.random.default_rng(1)
    soundfile.write(root / "noises" / "a.wav", random.normal(0, 0.2, 4000), 8000)
    soundfile.write(root / "noises" / "sub" / "b.flac", random.normal(0, 0.05, 40000), 16000)
    room = np.concatenate([np.zeros(40), [0.9], 0.2 * random.normal(0, 1, 2000) * np.exp(-np.arange(2000) / 300)])
    soundfile.write(root / "rooms" / "r.wav", room.clip(-1, 1), 16000)
    return root


def full(folders: Path, **changes: Any) -> Augmentation:
    options: dict[str, Any] = {
        "speed": SpeedPerturbation((0.9, 1.0, 1.1)),
        "noises": sounds_of(folders / "noises"),
        "rooms": sounds_of(folders / "rooms"),
        "gain_db": (-10.0, 6.0),
    }
    return Augmentation(**{**options, **changes})


def test_it_is_a_function_of_seed_epoch_and_id(folders: Path) -> None:
    one, same, other = full(folders), full(folders), full(folders, seed=1)
    results = [one(AUDIO, key("u"), epoch) for epoch in range(8)]
    assert all(torch.equal(result, same(AUDIO, key("u"), epoch)) for epoch, result in enumerate(results))
    assert len({len(result) for result in results}) > 1
    assert not torch.equal(one(AUDIO, key("u"), 0), other(AUDIO, key("u"), 0))
    assert not torch.equal(one(AUDIO, key("u"), 0), one(AUDIO, key("v"), 0))
    assert all(torch.isfinite(result).all() and result.abs().max() <= 1 for result in results)


def test_only_speed_changes_the_length(folders: Path) -> None:
    steady = full(folders, speed=SpeedPerturbation(()), room_probability=1.0, noise_probability=1.0)
    for epoch in range(5):
        assert len(steady(AUDIO, 7, epoch)) == len(AUDIO)
    keys = np.array([key(f"u{i}") for i in range(40)], np.uint64)
    speed = SpeedPerturbation((0.9, 1.0, 1.1), seed=3)
    only = Augmentation(speed=speed)
    for i, factor in enumerate(speed.of(keys, 2)):
        assert len(only(AUDIO, int(keys[i]), 2)) == pytest.approx(16000 / factor, abs=1)


def test_nothing_asked_is_nothing_done() -> None:
    assert torch.equal(Augmentation()(AUDIO, 5, 3), AUDIO)


@pytest.mark.parametrize("snr_db", [0.0, 10.0, 25.0])
@pytest.mark.parametrize(("length", "start"), [(3000, 2999), (50000, 100)])
def test_noise_is_added_at_its_ratio(snr_db: float, length: int, start: int) -> None:
    noise = torch.from_numpy(np.random.default_rng(2).normal(0, 3, length).astype(np.float32))
    added = add_noise(AUDIO, noise, snr_db, start) - AUDIO
    measured = 10 * torch.log10(AUDIO.square().mean() / added.square().mean())
    assert float(measured) == pytest.approx(snr_db, abs=0.01)
    assert torch.equal(add_noise(AUDIO, torch.zeros(10), snr_db, 0), AUDIO)
    assert torch.equal(add_noise(torch.zeros(100), noise, snr_db, 0), torch.zeros(100))


def test_a_room_keeps_timing_length_and_power() -> None:
    room = torch.zeros(500)
    room[100] = -0.5
    assert torch.allclose(reverberate(AUDIO, room), -AUDIO, atol=1e-5)
    room[300] = 0.3
    wet = reverberate(AUDIO, room)
    assert len(wet) == len(AUDIO)
    assert float(wet.square().mean()) == pytest.approx(float(AUDIO.square().mean()), rel=1e-4)
    assert torch.equal(reverberate(torch.zeros(100), room), torch.zeros(100))


def test_probabilities_are_kept(folders: Path) -> None:
    sometimes = full(folders, speed=SpeedPerturbation(()), rooms=(), gain_db=(0.0, 0.0), noise_probability=0.3)
    changed = sum(not torch.equal(sometimes(AUDIO, key(f"u{i}"), 0), AUDIO) for i in range(300))
    assert 60 <= changed <= 120


def test_numbers_of_keys_are_even_and_independent_of_order() -> None:
    keys = np.array([key(f"u{i}") for i in range(3000)], np.uint64)
    drawn = uniform(keys, 0, 0)
    assert np.array_equal(uniform(keys[::-1], 0, 0), drawn[::-1])
    assert np.abs(np.histogram(drawn, 10, (0, 1))[0] - 300).max() < 80
    assert abs(np.corrcoef(drawn, uniform(keys, 0, 1))[0, 1]) < 0.06
    assert abs(np.corrcoef(drawn, uniform(keys, 1, 0))[0, 1]) < 0.06


def test_a_speed_that_leaves_too_few_frames_is_not_taken() -> None:
    keys = np.sort(np.array([key(f"u{i}") for i in range(50)], np.uint64))
    plain, careful = SpeedPerturbation((0.9, 1.1)), SpeedPerturbation((0.9, 1.1), unchanged=keys[10:20])
    assert set(careful.of(keys, 0)[10:20]) == {1.0}
    assert np.array_equal(np.delete(careful.of(keys, 0), slice(10, 20)), np.delete(plain.of(keys, 0), slice(10, 20)))


def test_training_is_augmented_alike_by_any_workers_and_evaluation_never(synth_corpus: Path, folders: Path) -> None:
    def audio(workers: int, split: str, epoch: int = 1, **options: Any) -> dict[str, torch.Tensor]:
        manifest = str(synth_corpus / "dev.jsonl")
        data = SpeechDataModule(
            manifest,
            manifest,
            manifest,
            global_batch_size=4,
            per_device_batch_size=4,
            num_workers=workers,
            speeds=(0.9, 1.1),
            noise_folder=str(folders / "noises"),
            room_folder=str(folders / "rooms"),
            gain_db=(-3.0, 3.0),
            **options,
        )
        data.setup("test" if split == "test" else "fit")
        loader: Any = getattr(data, f"{split}_dataloader")()
        loader.sampler.set_epoch(epoch)
        return {
            name: batch.audio[i, : batch.audio_lengths[i]]
            for batch in loader
            for i, name in enumerate(batch.utterance_ids)
        }

    inline, workers, other = audio(0, "train"), audio(2, "train"), audio(0, "train", epoch=2)
    # Bit for bit at the same number of threads, which tests/conftest.py sets to one: a worker has one, and more of them
    # add up in another order.
    assert all(torch.equal(inline[name], workers[name]) for name in inline)
    assert any(len(inline[name]) != len(other[name]) for name in inline)
    assert not torch.equal(next(iter(audio(0, "train", seed=5).values())), next(iter(inline.values())))
    for split in ("val", "test"):
        for name, samples in audio(0, split).items():
            plain, _ = soundfile.read(synth_corpus / name, dtype="float32")
            assert np.array_equal(samples.numpy(), plain)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"noise_probability": 1.5}, "noise_probability is 1.5"),
        ({"room_probability": -0.1}, "room_probability is -0.1"),
        ({"noise_snr_db": (10.0, 5.0)}, "noise_snr_db is 10 to 5"),
        ({"gain_db": (1.0, -1.0)}, "gain_db is 1 to -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SpeechDataModule(**options)


def test_a_folder_without_sound_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no sound file in it"):
        SpeechDataModule(noise_folder=str(tmp_path))
