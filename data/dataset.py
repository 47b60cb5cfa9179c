"""A micro-batch of rows to a `Batch`: read, augment in training, encode, collate.

Everything that happens to an utterance is a function of (seed, epoch, id), so it does not matter which worker or rank
reads it. A corpus up to `cache_audio_seconds` long is kept decoded in memory (float32, 64 kB a second of 16 kHz audio)
when the reading process is the training process; worker processes decode each time.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from data.audio import AudioError, Channel, read_audio
from data.augmentation import Augmentation
from data.batch import Batch, Example, collate
from data.corpus import Corpus
from data.epoch_plan import Rows
from data.manifest import Utterance
from data.text import Normalizer
from data.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MicroBatch:
    """What the sampler asks for: rows of the corpus, and where they stand."""

    rows: Rows
    epoch: int
    step_utterances: int


class SpeechDataset(Dataset[Batch]):
    """`dataset[micro_batch] -> Batch`.

    An utterance whose audio cannot be used raises AudioError; with `audio_error_limit` above zero so many (counted over
    the workers of the process) are left out with a warning first.
    """

    def __init__(
        self,
        corpus: Corpus,
        vocabulary: Vocabulary,
        *,
        normalizer: Normalizer | None = None,
        sample_rate: int = 16000,
        channel: Channel = "mix",
        cache_audio_seconds: float = 0.0,
        audio_error_limit: int = 0,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.normalizer = normalizer or Normalizer()
        self.sample_rate = sample_rate
        self.channel = channel
        self.augmentation = augmentation
        self.audio_error_limit = audio_error_limit
        self._audio_errors = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._cached = float(corpus.durations.sum()) <= cache_audio_seconds
        self._cache: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, micro_batch: MicroBatch) -> Batch:
        epoch = micro_batch.epoch
        examples = [example for row in micro_batch.rows if (example := self._example(int(row), epoch)) is not None]
        return collate(examples, epoch=epoch, step_utterances=micro_batch.step_utterances)

    def _example(self, row: int, epoch: int) -> Example | None:
        utterance = self.corpus[row]
        try:
            audio = self._audio(row, utterance)
        except AudioError as error:
            self._audio_errors += 1
            sentence = f"{utterance.place}: {error}"
            if int(self._audio_errors) > self.audio_error_limit:
                raise AudioError(sentence) from error
            logger.warning("left out (%d of at most %d): %s", int(self._audio_errors), self.audio_error_limit, sentence)
            return None
        if self.augmentation is not None:
            audio = self.augmentation(audio, int(self.corpus.keys[row]), epoch)
        tokens = torch.tensor(self.vocabulary.encode(self.normalizer(utterance.text)), dtype=torch.int64)
        return Example(audio, tokens, utterance.id)

    def _audio(self, row: int, utterance: Utterance) -> Tensor:
        if row in self._cache:
            return self._cache[row]
        audio: Tensor = read_audio(
            utterance.audio_filepath,
            sample_rate=self.sample_rate,
            offset=utterance.offset,
            duration=utterance.duration,
            channel=self.channel,
            byte_span=utterance.byte_span,
            to_end=not utterance.segment,
        )
        if self._cached and get_worker_info() is None:
            self._cache[row] = audio
        return audio
