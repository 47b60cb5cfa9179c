"""One training step outside any trainer: what the memory and whole-step studies measure and predict.

    audio [B,N] -> network -> log-probabilities [B,T,V] -> CTC, summed -> backward -> optimiser

Audio is noise and every utterance fills its batch, so that ordinary layers, which know no lengths, do the same work.
Built under `FakeTensorMode` it holds no memory; there the loss is a stand-in that saves and returns what CTC does.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from experiments.memory.ordinary_layers import ordinary_stack
from models.ctc import CTCHead, ctc_losses
from models.features import FeatureOptions, Features
from models.front_end import FrontEnd, FrontEndOptions
from models.recipe import Recipe
from models.stack import RecurrentStack, StackOptions

Precision = Literal["32", "bf16-mixed", "bf16-true"]
FRAMES_PER_TOKEN = 4
"""At 20 ms a frame: about 12 characters a second, as speech has them."""


@dataclass(frozen=True)
class StepOptions:
    """A network, a batch and how they are trained; `frames` T are those of the stack, for every utterance."""

    stack: StackOptions
    batch_size: int
    frames: int
    precision: Precision = "32"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    features: FeatureOptions = field(default_factory=FeatureOptions)
    front_end: FrontEndOptions = field(default_factory=FrontEndOptions)
    num_tokens: int = 29

    @property
    def itemsize(self) -> int:
        """Bytes of an activation."""
        return 4 if self.precision == "32" else 2

    @property
    def tensor_bytes(self) -> int:
        """Of one [T,B,H]."""
        return self.frames * self.batch_size * self.stack.hidden_size * self.itemsize


class BareStep:
    """The step on one device; `ordinary` puts Linear, BatchNorm1d and torch.nn.RNN where the recurrent layers stand."""

    def __init__(self, options: StepOptions, device: torch.device | str = "cpu", ordinary: bool = False) -> None:
        self.options, self.device = options, torch.device(device)
        torch.manual_seed(0)
        with self.device:
            network = _Network(options, ordinary)
            if options.precision == "bf16-true":
                store(network, torch.bfloat16)
            self.network = network.train()
            samples = options.frames * network.front_end.time_stride * network.features.stride
            samples -= 2 * network.features.pad
            if samples < 1:
                raise ValueError(
                    f"frames {options.frames} was given; with {network.features.options.pad_seconds} s of padding at "
                    "both ends it must be more: raise frames, or lower pad_seconds."
                )
            B, U = options.batch_size, max(1, options.frames // FRAMES_PER_TOKEN)
            self.audio = 0.1 * torch.randn(B, samples)
            self.audio_lengths = torch.full((B,), samples)
            # No two neighbours alike: as many frames as tokens would do.
            self.tokens = (torch.arange(U) % 2 + 1).expand(B, U).contiguous()
            self.token_lengths = torch.full((B,), U)
        self.optimizer = Recipe(optimizer=options.optimizer, learning_rate=1e-4).optimizer_for(self.network)

    @property
    def alive(self) -> list[Tensor]:
        """What lives whether or not a step runs, but for gradients and the optimiser's state."""
        inputs = [self.audio, self.audio_lengths, self.tokens, self.token_lengths]
        return [*self.network.parameters(), *self.network.buffers(), *inputs]

    @property
    def audio_seconds(self) -> float:
        """Of the batch."""
        return self.audio.numel() / self.network.features.options.sample_rate

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast where the precision is mixed."""
        if self.options.precision != "bf16-mixed":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """[B,T,V], and lengths in frames."""
        with self.precision():
            return self.network(self.audio, self.audio_lengths)

    def loss(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        """Of the batch, an utterance."""
        if isinstance(log_probs, FakeTensor):
            return _StandIn.apply(log_probs, self.tokens.shape[1])
        return ctc_losses(log_probs, lengths, self.tokens, self.token_lengths).sum() / self.options.batch_size

    def forward(self) -> Tensor:
        """The batch's loss."""
        return self.loss(*self.log_probabilities())

    def backward(self) -> None:
        """Forward and backward."""
        self.forward().backward()

    def step(self) -> None:
        """A whole training step; gradients stay allocated, as they do between accumulated micro-batches."""
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def train(self) -> None:
        """The same with gradients made anew, as a trainer does: what is timed."""
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()


class _Network(nn.Module):
    """`AcousticNetwork` without SpecAugment, from parts that can be exchanged and built of fake tensors."""

    def __init__(self, options: StepOptions, ordinary: bool) -> None:
        super().__init__()
        # A filter bank is checked by its values, which fake tensors have not.
        with unset_fake_temporarily():
            self.features = Features(options.features)
        self.front_end = FrontEnd(self.features.num_bins, options.front_end, options.stack.normalization)
        build = ordinary_stack if ordinary else RecurrentStack
        self.stack = build(self.front_end.output_size, options.stack)
        self.head = CTCHead(options.stack.hidden_size, options.num_tokens, options.stack.normalization)

    def forward(self, audio: Tensor, audio_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B,T,V] and lengths in frames."""
        x, lengths = self.features(audio, audio_lengths)
        x, lengths = self.front_end(x.to(self.front_end.convolutions[0].weight.dtype), lengths)
        return self.head(*self.stack(x, lengths)).transpose(0, 1), lengths


def store(network: nn.Module, dtype: torch.dtype) -> None:
    """Parameters in `dtype`, as `Module.to` would, which fake parameters do not allow; our own buffers keep float32."""
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.detach().to(dtype))
        if isinstance(module, nn.BatchNorm1d):
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.to(dtype)


class _StandIn(torch.autograd.Function):
    """What CTC keeps: log-probabilities, losses [B] and log alpha [B, T, 2U + 1], in float32."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, tokens: int) -> Tensor:
        B, T, _ = log_probs.shape
        alpha = log_probs.new_empty(B, T, 2 * tokens + 1)
        losses = log_probs.new_empty(B)
        ctx.save_for_backward(log_probs, losses, alpha)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.empty_like(ctx.saved_tensors[0]), None
