"""The CTC head, the loss, and which utterances it can align.

Head: masked batch norm on its input, one matrix H -> V, log-softmax; no batch norm on the logits. Log-softmax and loss
run in float32 under any precision. The loss is PyTorch's own CTC (int64 targets keep cuDNN's out).

On a GPU PyTorch's CTC is where host and device meet in a step: it reads lengths (some versions targets too) on the
host and copies tables back for its kernels, forward and again backward. Lengths given on the host would spare the
reading and none of those copies, each of which waits for all that was launched before.

CTC emits one token a frame and needs a blank between equal neighbours: "aab" takes 4 frames, "aaa" 5. An utterance with
fewer is known from its lengths, before any network has run; it takes no part (`recognizer`), instead of being an
infinity that somebody has to zero.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.batch_norm import SequenceBatchNorm
from models.frames import Frames, frame_mask

BLANK = 0


class CTCHead(nn.Module):
    """[T,B,H] to float32 log-probabilities [T,B,V]."""

    def __init__(self, hidden_size: int, num_tokens: int, normalization: str = "batch") -> None:
        super().__init__()
        self.norm = None
        if normalization != "none":
            self.norm = SequenceBatchNorm(hidden_size, synchronised=normalization == "sync_batch")
        self.linear = nn.Linear(hidden_size, num_tokens)

    def forward(self, h: Float[Tensor, "T B H"], frames: Frames) -> Float[Tensor, "T B V"]:
        """Frames past each length hold no meaning."""
        if self.norm is not None:
            h = self.norm(h, frames.mask)
        return F.log_softmax(self.linear(h).float(), dim=-1)


def required_frames(tokens: Int[Tensor, "B U"], token_lengths: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Frames that CTC needs: one a token and one more for each adjacent repeat."""
    repeats = (tokens[:, 1:] == tokens[:, :-1]) & frame_mask(token_lengths, tokens.shape[1])[:, 1:]
    return token_lengths + repeats.sum(1)


def alignable(
    tokens: Int[Tensor, "B U"], token_lengths: Int[Tensor, " B"], frame_lengths: Int[Tensor, " B"]
) -> Bool[Tensor, " B"]:
    """True where the utterance has enough frames, and at least one."""
    return (required_frames(tokens, token_lengths) <= frame_lengths) & (frame_lengths > 0)


def ctc_losses(
    log_probs: Float[Tensor, "B T V"],
    frame_lengths: Int[Tensor, " B"],
    tokens: Int[Tensor, "B U"],
    token_lengths: Int[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """-log p(tokens | audio) in nats, one an utterance, float32; 0 for an utterance of 0 frames and 0 tokens.

    An empty transcript is legal: its loss is -sum log p(blank). Infinite where the utterance cannot be aligned.
    """
    targets = tokens if tokens.shape[1] else tokens.new_zeros(tokens.shape[0], 1)
    with torch.autocast(log_probs.device.type, enabled=False):
        return F.ctc_loss(
            log_probs.float().transpose(0, 1),
            targets.long(),
            frame_lengths,
            token_lengths,
            blank=BLANK,
            reduction="none",
        )
