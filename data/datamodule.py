"""From manifests to loaders, on any number of ranks: the door through which Lightning meets the data.

Training goes by steps: either `global_batch_size` utterances over all ranks and micro-batches, in micro-batches of
`per_device_batch_size`; or `micro_batches_per_step` micro-batches of `seconds_per_batch` padded seconds each. The
accumulation of gradients follows from that and the number of ranks (`accumulate_grad_batches`).

Before the first epoch every text is encoded and every training utterance compared with what the model can align, so
that a wrong vocabulary or stride stops the run at its start.
"""

import hashlib
import logging
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from data.alignable import alignable, unalignable_rows
from data.audio import Channel
from data.augmentation import Augmentation, sounds_of
from data.batch import Batch
from data.batch_sizes import BatchSizes
from data.corpus import Corpus, read_corpus
from data.dataset import MicroBatch, SpeechDataset
from data.epoch_plan import EpochPlan, Rows, check_longest
from data.fingerprint import Contents, Manifests, contents, paths_of
from data.lightning_contract import check_trainer, epoch_of, move_position
from data.loader import ResumableLoader, outlive_one_signal
from data.sampler import EvaluationSampler, TrainingSampler
from data.speed import SpeedPerturbation
from data.text import Normalizer
from data.vocabulary import Vocabulary, VocabularyError

logger = logging.getLogger(__name__)


class SpeechDataModule(pl.LightningDataModule):
    """Manifests are paths or lists of paths, relative to `root`; None where a split is not used.

    Args:
        vocabulary: file made by `python -m data vocabulary`; None for blank, space, apostrophe and a-z.
        sample_rate: Hz; other rates are resampled.
        channel: of audio with several: "mix", "error" or the number of one.
        global_batch_size: utterances of an optimiser step over all ranks; None with `seconds_per_batch`.
        per_device_batch_size: utterances of a micro-batch; None with `seconds_per_batch`.
        seconds_per_batch: padded seconds of a micro-batch, instead of the two sizes.
        micro_batches_per_step: with `seconds_per_batch`, micro-batches of a step over all ranks.
        evaluation_batch_size: utterances of a batch in validation and test.
        sorted_first_epoch: first epoch from short to long.
        speeds: factors of speed perturbation, as all augmentation drawn for each (seed, epoch, utterance), in training.
        noise_folder: sound files, relative to `root`, added to a share `noise_probability` of the utterances.
        noise_snr_db: limits of the signal-to-noise ratio.
        room_folder: impulse responses, relative to `root`, that a share `room_probability` is convolved with.
        gain_db: limits of a change of level.
        max_duration: seconds; longer training utterances are left out, counted.
        skipped_share_limit: share of training utterances that may be left out because they cannot be aligned.
        audio_error_limit: unusable files that may be left out of training before one stops the run.
        cache_audio_seconds: a corpus up to this long is kept decoded in memory, with `num_workers` 0.
        text_case, punctuation: how texts are normalised, all splits alike.
    """

    def __init__(
        self,
        train_manifest: Manifests = None,
        val_manifest: Manifests = None,
        test_manifest: Manifests = None,
        root: str = ".",
        vocabulary: str | None = None,
        text_case: Literal["keep", "lower"] = "keep",
        punctuation: Literal["keep", "remove"] = "keep",
        sample_rate: int = 16000,
        channel: Channel = "mix",
        global_batch_size: int | None = 32,
        per_device_batch_size: int | None = 8,
        seconds_per_batch: float | None = None,
        micro_batches_per_step: int | None = None,
        evaluation_batch_size: int = 8,
        sorted_first_epoch: bool = True,
        speeds: tuple[float, ...] = (),
        noise_folder: str | None = None,
        noise_probability: float = 0.5,
        noise_snr_db: tuple[float, float] = (5.0, 30.0),
        room_folder: str | None = None,
        room_probability: float = 0.5,
        gain_db: tuple[float, float] = (0.0, 0.0),
        max_duration: float | None = None,
        skipped_share_limit: float = 0.01,
        audio_error_limit: int = 0,
        cache_audio_seconds: float = 7200.0,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.manifests = {"train": train_manifest, "val": val_manifest, "test": test_manifest}
        self.root = Path(root)
        self.vocabulary = Vocabulary.load(None if vocabulary is None else self.root / vocabulary)
        self.normalizer = Normalizer(case=text_case, punctuation=punctuation)
        self.sample_rate = sample_rate
        self.channel = channel
        self.batch_sizes = BatchSizes(
            global_batch_size, per_device_batch_size, seconds_per_batch, micro_batches_per_step
        )
        self.evaluation_batch_size = evaluation_batch_size
        self.sorted_first_epoch = sorted_first_epoch
        self.augmentation = Augmentation(
            speed=SpeedPerturbation(tuple(speeds), seed),
            noises=sounds_of(self.root / noise_folder) if noise_folder is not None else (),
            noise_probability=noise_probability,
            noise_snr_db=noise_snr_db,
            rooms=sounds_of(self.root / room_folder) if room_folder is not None else (),
            room_probability=room_probability,
            gain_db=gain_db,
            sample_rate=sample_rate,
            seed=seed,
        )
        self.max_duration = max_duration
        self.skipped_share_limit = skipped_share_limit
        self.audio_error_limit = audio_error_limit
        self.cache_audio_seconds = cache_audio_seconds
        self.num_workers = num_workers
        self.seed = seed
        self.corpora: dict[str, Corpus] = {}
        self.contents: dict[str, Contents] = {}
        """Of the splits that were read: what their manifests said (data/fingerprint.py)."""
        self.unalignable_ids: list[str] = []
        self.padding_share: float | None = None
        """Of the seconds of the epoch that was planned last; None before."""
        self._rows: Rows | None = None  # of the training corpus; None where all are used

    def accumulate_grad_batches(self, world_size: int) -> int:
        """Micro-batches that a rank accumulates for a step. Raises ValueError where a step does not divide."""
        return self.batch_sizes.accumulate_grad_batches(world_size)

    def setup(self, stage: str) -> None:
        """Read the manifests of the stage, encode every text, leave out what cannot be aligned (training only)."""
        for split in {"fit": ("train", "val"), "validate": ("val",)}.get(stage, ("test",)):
            if self.manifests[split] is not None and split not in self.corpora:
                self.corpora[split] = corpus = read_corpus(self.paths(split))
                self.contents[split] = contents(corpus, self.paths(split))
                if complaint := corpus.complaint(self.vocabulary, self.normalizer):
                    raise VocabularyError(f"{split}_manifest: {complaint}")
                if split == "train":
                    self._rows = self._usable(corpus)
        if self.num_workers == 0:
            # Lightning advises workers for every loader without; small corpora are served faster from memory.
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")

    def paths(self, split: str) -> list[Path]:
        """The manifests of a split; none where it is not used."""
        return paths_of(self.manifests[split], self.root)

    def _usable(self, corpus: Corpus) -> Rows | None:
        usable = np.ones(len(corpus), bool)
        if self.max_duration is not None:
            usable = corpus.durations <= self.max_duration
            if over := int((~usable).sum()):
                logger.info(
                    "%d training utterances longer than max_duration %g s are left out", over, self.max_duration
                )
        output_lengths = getattr(self.trainer and self.trainer.lightning_module, "output_lengths", None)
        if output_lengths is not None:
            needed = corpus.frames_needed(self.vocabulary, self.normalizer)
            too_short = unalignable_rows(
                corpus,
                needed,
                output_lengths,
                sample_rate=self.sample_rate,
                share_limit=self.skipped_share_limit,
            )
            self.unalignable_ids = [corpus[int(row)].id for row in too_short]
            usable[too_short] = False
            if self.augmentation.speed.factors:
                fastest = corpus.durations / max(self.augmentation.speed.factors)
                tight = usable & ~alignable(fastest, needed, output_lengths, self.sample_rate)
                unchanged = replace(self.augmentation.speed, unchanged=np.sort(corpus.keys[tight]))
                self.augmentation = replace(self.augmentation, speed=unchanged)
        if not usable.any():
            raise ValueError(
                f"train_manifest: none of {len(corpus)} utterances is left; raise max_duration or mend the data."
            )
        if self.batch_sizes.seconds_per_batch is not None:
            slowest = min((1.0, *self.augmentation.speed.factors))
            check_longest(corpus.durations[usable] / slowest, self.batch_sizes.seconds_per_batch)
        return None if usable.all() else np.flatnonzero(usable).astype(np.int32)

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch of training, for all ranks; rows are rows of the training corpus."""
        corpus = self.corpora["train"]
        rows = slice(None) if self._rows is None else self._rows
        durations = corpus.durations[rows]
        if self.augmentation.speed.factors:
            durations = durations / self.augmentation.speed.of(corpus.keys[rows], epoch)
        plan = self.batch_sizes.plan(durations, seed=self.seed, epoch=epoch, sorted_first_epoch=self.sorted_first_epoch)
        self.padding_share = plan.padding_share(durations)
        logger.info(
            "epoch %d: %d steps, %d utterances repeated in the last, %d left out, %.1f %% of the seconds are padding",
            epoch,
            len(plan),
            plan.repeated,
            len(corpus) - len(durations),
            100 * self.padding_share,
        )
        return plan if self._rows is None else replace(plan, rows=self._rows[plan.rows])

    def fingerprint(self) -> str:
        """Of all that the order of utterances is computed from, apart from the epoch and the number of ranks, and of
        what the training manifests say of each utterance, its text too."""
        sizes = self.batch_sizes
        cut = (sizes.global_batch_size, sizes.seconds_per_batch, sizes.micro_batches_per_step)
        said = sorted(self.contents["train"].items())
        options = repr((self.seed, self.sorted_first_epoch, self.augmentation.speed.factors, cut, said))
        digest = hashlib.blake2b(options.encode(), digest_size=16)
        keys = self.corpora["train"].keys
        digest.update(np.ascontiguousarray(keys if self._rows is None else keys[self._rows]).data)
        return digest.hexdigest()

    def train_dataloader(self) -> ResumableLoader:
        """The training micro-batches of this rank, in steps that match the trainer's accumulation."""
        corpus, rank, world_size = self._corpus("train"), *self._rank()
        accumulate = self.accumulate_grad_batches(world_size)
        sampler = TrainingSampler(corpus, self.plan, rank=rank, world_size=world_size)
        if self.trainer is not None:
            steps_vary = self.batch_sizes.seconds_per_batch is not None and bool(self.augmentation.speed.factors)
            check_trainer(self.trainer, accumulate=accumulate, steps_vary=steps_vary)
            sampler.set_epoch(epoch_of(self.trainer))
        return ResumableLoader(
            self._dataset(corpus, training=True),
            sampler,
            fingerprint=self.fingerprint(),
            on_resume=None if self.trainer is None else partial(move_position, self.trainer),
            **self._loader_options(),
        )

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """The validation batches of this rank, each utterance once over all ranks; no loader without a manifest."""
        return [] if self.manifests["val"] is None else self._evaluation("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """The test batches of this rank, each utterance once over all ranks."""
        return self._evaluation("test")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """The test set."""
        return self._evaluation("test")

    def longest_batch(self) -> Batch:
        """The micro-batch with the most padded seconds, at the slowest speed: to try before training."""
        corpus = self._corpus("train")
        rows = np.arange(len(corpus), dtype=np.int32) if self._rows is None else self._rows
        durations = corpus.durations[rows]
        plan = self.batch_sizes.plan(durations, seed=self.seed, epoch=0, sorted_first_epoch=True)
        padded = np.maximum.reduceat(durations[plan.rows], plan.offsets[:-1]) * np.diff(plan.offsets)
        worst = int(np.argmax(padded))
        picked = rows[plan.rows[plan.offsets[worst] : plan.offsets[worst + 1]]]
        dataset = self._dataset(corpus, training=False)
        if slowed := [factor for factor in self.augmentation.speed.factors if factor < 1]:
            dataset.augmentation = Augmentation(speed=SpeedPerturbation((min(slowed),)))
        return dataset[MicroBatch(picked, 0, len(picked))]

    def _evaluation(self, split: str) -> DataLoader[Batch]:
        corpus, rank, world_size = self._corpus(split), *self._rank()
        sampler = EvaluationSampler(corpus, batch_size=self.evaluation_batch_size, rank=rank, world_size=world_size)
        dataset = self._dataset(corpus, training=False)
        options = self._loader_options()
        return DataLoader(dataset, batch_size=None, sampler=sampler, **options)

    def _dataset(self, corpus: Corpus, *, training: bool) -> SpeechDataset:
        return SpeechDataset(
            corpus,
            self.vocabulary,
            normalizer=self.normalizer,
            sample_rate=self.sample_rate,
            channel=self.channel,
            cache_audio_seconds=self.cache_audio_seconds,
            audio_error_limit=self.audio_error_limit if training else 0,
            augmentation=self.augmentation if training and self.augmentation.changes_anything else None,
        )

    def _corpus(self, split: str) -> Corpus:
        if split not in self.corpora:
            raise ValueError(f"{split}_manifest is not given; name the manifest of this split.")
        return self.corpora[split]

    def _rank(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)

    def _loader_options(self) -> dict[str, Any]:
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "worker_init_fn": outlive_one_signal if self.num_workers > 0 else None,
            "pin_memory": on_gpu,
            # Its own, so that reading data draws nothing from the random state that the model's training uses.
            "generator": torch.Generator(),
        }
