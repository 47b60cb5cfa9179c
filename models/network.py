"""The whole acoustic network as one module: audio to log-probabilities of characters.

    audio [B,N] -> features [B,T,F] -> SpecAugment (training) -> front-end [B,T',D] -> stack [T',B,H] -> head [B,T',V]

Every stage takes and returns (x, lengths); each alone knows how it changes lengths.
"""

from jaxtyping import Float, Int
from torch import Tensor, nn

from models.ctc import CTCHead
from models.features import FeatureOptions, Features
from models.front_end import FrontEnd, FrontEndOptions
from models.spec_augment import SpecAugmentOptions, spec_augment
from models.stack import RecurrentStack, StackOptions


class AcousticNetwork(nn.Module):
    """`num_tokens` V counts the blank."""

    def __init__(
        self,
        stack: StackOptions,
        num_tokens: int,
        features: FeatureOptions,
        front_end: FrontEndOptions,
        augment: SpecAugmentOptions,
    ) -> None:
        super().__init__()
        self.augment = augment
        self.features = Features(features)
        self.front_end = FrontEnd(self.features.num_bins, front_end, stack.normalization)
        self.stack = RecurrentStack(self.front_end.output_size, stack)
        self.head = CTCHead(stack.hidden_size, num_tokens, stack.normalization)

    @property
    def seconds_per_frame(self) -> float:
        """Of the output."""
        return self.features.stride * self.front_end.time_stride / self.features.options.sample_rate

    def output_lengths(self, audio_lengths: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Samples -> frames at the loss; exactly what `forward` returns."""
        return self.front_end.output_lengths(self.features.output_lengths(audio_lengths))

    def forward(
        self,
        audio: Float[Tensor, "B N"],
        audio_lengths: Int[Tensor, " B"],
        utterance_ids: list[str] | None = None,
        epoch: int = 0,
    ) -> tuple[Float[Tensor, "B Tout V"], Int[Tensor, " B"]]:
        """Float32 log-probabilities and their lengths in frames. SpecAugment needs the ids, and is left out without
        them.

        An utterance of length 0 takes no part: no batch statistics, no gradient.
        """
        x, lengths = self.features(audio, audio_lengths)
        if self.training and utterance_ids is not None:
            x = spec_augment(x, lengths, self.augment, utterance_ids, epoch)
        x, lengths = self.front_end(x.to(self.front_end.convolutions[0].weight.dtype), lengths)
        h, frames = self.stack(x, lengths)
        return self.head(h, frames).transpose(0, 1), lengths
