"""What leaves the data side: a ragged batch of audio and tokens with integer lengths in samples and tokens.

Legend: `B` utterances, `N` samples of the longest, `U` tokens of the longest. Audio is float32 in [-1, 1] and zero past
each length, tokens are zero past each length. A batch may be empty (B = 0): a rank that has no utterance left in an
evaluation still takes part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """One utterance, read and encoded. `audio` is float32 at the model's sample rate, `tokens` are int64 ids."""

    audio: Float[Tensor, "N"]
    tokens: Int[Tensor, "U"]
    utterance_id: str


@dataclass
class Batch:
    """A micro-batch of one rank. `step_utterances`: utterances of the whole optimiser step, over all ranks and
    micro-batches; the denominator of the loss."""

    audio: Float[Tensor, "B N"]
    audio_lengths: Int[Tensor, "B"]
    tokens: Int[Tensor, "B U"]
    token_lengths: Int[Tensor, "B"]
    utterance_ids: list[str]
    epoch: int
    step_utterances: int

    def __len__(self) -> int:
        return len(self.utterance_ids)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "Batch":
        """The batch on another device; Lightning calls this. Copies from pinned memory do not wait."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory; the loader calls this when it pins."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(
            self,
            audio=change(self.audio),
            audio_lengths=change(self.audio_lengths),
            tokens=change(self.tokens),
            token_lengths=change(self.token_lengths),
        )


def collate(examples: Sequence[Example], *, epoch: int = 0, step_utterances: int | None = None) -> Batch:
    """Pad examples to one batch, in the order given. `step_utterances` None: this batch is the whole step.

    Raises ValueError for an example without samples, since no later stage can give it a frame.
    """
    if empty := [example.utterance_id for example in examples if not len(example.audio)]:
        raise ValueError(f"{empty[0]}: no samples; a batch holds utterances of at least one sample, so leave it out.")
    audio_lengths = torch.tensor([len(example.audio) for example in examples], dtype=torch.int64)
    token_lengths = torch.tensor([len(example.tokens) for example in examples], dtype=torch.int64)
    audio = torch.zeros(len(examples), int(audio_lengths.max()) if examples else 0)
    tokens = torch.zeros(len(examples), int(token_lengths.max()) if examples else 0, dtype=torch.int64)
    for i, example in enumerate(examples):
        audio[i, : len(example.audio)] = example.audio
        tokens[i, : len(example.tokens)] = example.tokens
    return Batch(
        audio=audio,
        audio_lengths=audio_lengths,
        tokens=tokens,
        token_lengths=token_lengths,
        utterance_ids=[example.utterance_id for example in examples],
        epoch=epoch,
        step_utterances=len(examples) if step_utterances is None else step_utterances,
    )
