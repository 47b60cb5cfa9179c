"""The recurrent stack: L layers in modules of k, residual skips, row convolutions. Time-major inside.

    layer i:  x_i = f(BN(W_i x_{i-1}) + U_i h_{t-1})                                      i = 1 .. L
    then:     dropout, the row convolutions that stand after layer i, the skip that ends at layer i

A skip of span s joins what entered layers i-s+1 .. i to what leaves them, for i = s, 2s, ... and for the shorter rest
at the end; the span has nothing to do with k. None crosses the first width change: when the front-end's width is not
`hidden_size`, the first span has no skip. `skip_placement` says where it lands:

* `after_activation` (default): added to what leaves the span, behind its row convolutions. A clean identity path
  through the whole depth.
* `after_batch_norm`: added inside the span's last layer, between batch norm and f: h_t = f(BN(W x_t) + skip_t + U
  h_{t-1}).
* `before_batch_norm`: added to that layer's input term: h_t = f(BN(W x_t + skip_t) + U h_{t-1}).

`initialization` says how the stack starts:

* `gaussian` (default): U ~ N(0, 1 / 4H), of spectral radius 0.5, so that an unclipped ReLU cannot explode; W ~ N(0, 1 /
  fan-in). Batch norm's weight starts at 1, and at 1 / sqrt(number of spans) in the layer that ends a skip's span, so
  the sum of all branches has the same size at any depth.
* `orthogonal`: the same with U = 0.5 x a random orthogonal matrix, which takes a second a layer to make at H = 1152.
* `identity`: the same with U = 0.5 I + noise of spectral radius about 0.1: every layer blurs over a few frames, which
  was seen to hurt more the deeper the stack (docs/LOG.md).
* `uniform`: W, U ~ U(-1/sqrt(H), 1/sqrt(H)) and all batch norm weights 1, as torch.nn.RNN starts.

`memory_policy` says what is kept for the backward pass (`memory_policy.py`); it changes no number.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.batch_norm import Moments, SequenceBatchNorm, track
from models.frames import Frames
from models.memory_policy import MemoryPolicy, offloading, segments
from models.recurrent_layer import Activation, Normalization, RecurrentLayer, SkipPlacement
from models.row_convolution import RowConvolution, RowConvolutionPlacement, row_convolution_plan

Initialization = Literal["gaussian", "orthogonal", "identity", "uniform"]
Seen = tuple[SequenceBatchNorm, Moments]


@dataclass(frozen=True)
class StackOptions:
    """Depth, width and how the layers are tied together; the module docstring explains each."""

    num_layers: int
    hidden_size: int
    module_layers: int = 4
    skip_span: int | None = 4
    """Layers a skip spans; None: no skips."""
    skip_placement: SkipPlacement = "after_activation"
    row_convolution: RowConvolutionPlacement = "per_module"
    future_frames: int = 40
    """Of all row convolutions together: 800 ms at 20 ms a frame."""
    activation: Activation = "clipped_relu"
    normalization: Normalization = "batch"
    initialization: Initialization = "gaussian"
    dropout: float = 0.0
    """Of a layer's output units, the same ones over all frames of an utterance."""
    backend: str = "auto"
    memory_policy: MemoryPolicy = "save"

    def __post_init__(self) -> None:
        for name, least in (
            ("num_layers", 1),
            ("hidden_size", 1),
            ("module_layers", 1),
            ("skip_span", 1),
            ("future_frames", 0),
        ):
            value = getattr(self, name)
            if not (value is None and name == "skip_span") and value < least:
                or_null = ", or null" if name == "skip_span" else ""
                raise ValueError(f"{name} is {value}; give a whole number of {least} or more{or_null}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; give a number from 0 to below 1.")
        for name, allowed in (
            ("skip_placement", SkipPlacement),
            ("initialization", Initialization),
            ("memory_policy", MemoryPolicy),
        ):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(
                    f"{name} {getattr(self, name)!r} was given; it is one of {', '.join(get_args(allowed))}."
                )


def skip_spans(num_layers: int, skip_span: int | None, same_width: bool) -> dict[int, int]:
    """{last layer of a span: the layer after whose output the span begins}, 1-based; 0 is the stack's input."""
    if skip_span is None:
        return {}
    begins = range(0 if same_width else skip_span, num_layers, skip_span)
    return {min(begin + skip_span, num_layers): begin for begin in begins}


class RecurrentStack(nn.Module):
    """[B,T,D] -> [T,B,H]: batch-major in, because the front-end is; time-major out, because the head and CTC are."""

    def __init__(self, input_size: int, options: StackOptions) -> None:
        super().__init__()
        self.options = options
        H = options.hidden_size
        self.layers = nn.ModuleList(
            RecurrentLayer(H if i else input_size, H, options.activation, options.normalization, options.backend)
            for i in range(options.num_layers)
        )
        plan = row_convolution_plan(
            options.num_layers, options.module_layers, options.row_convolution, options.future_frames
        )
        self.row_convolutions = nn.ModuleDict(
            {
                str(layer): nn.Sequential(*(RowConvolution(H, frames) for frames in shares))
                for layer, shares in plan.items()
            }
        )
        self.spans = skip_spans(options.num_layers, options.skip_span, input_size == H)
        self._initialize()

    def forward(self, x: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]) -> tuple[Float[Tensor, "T B H"], Frames]:
        """Output frames past each length are zero; x's frames past each length must be zero."""
        x = x.transpose(0, 1)
        frames = Frames.of(lengths, x.shape[0])
        # Running statistics move once, at the end and together, however often a layer runs.
        seen: list[Seen] = []
        if self.options.memory_policy == "recompute" and self.training:
            skip: Tensor | None = None
            for layers in segments(len(self.layers), self.options.module_layers):
                x, skip = self._recomputed(layers, x, skip, frames, seen)
        else:
            offload = self.options.memory_policy == "offload" and self.training
            with offloading([*self.parameters(), *self.buffers()], x.device) if offload else nullcontext():
                x, _ = self.run(range(1, len(self.layers) + 1), x, None, frames, seen)
        track([norm for norm, _ in seen], [moments for _, moments in seen])
        return x, frames

    def run(
        self, layers: range, x: Tensor, skip: Tensor | None, frames: Frames, seen: list[Seen]
    ) -> tuple[Tensor, Tensor | None]:
        """Some layers; `skip` is what entered the span that is open before them, and after them."""
        placement = self.options.skip_placement
        begins = set(self.spans.values())
        # A module list's own indexing costs as much host time as a launch.
        chosen = list(self.layers)[layers.start - 1 : layers.stop - 1]
        for i, layer in zip(layers, chosen, strict=True):
            skip = x if i - 1 in begins else skip
            ending = skip if i in self.spans else None
            if placement == "after_activation":
                x = self._after(i, layer(x, frames, seen=seen))
                x = x if ending is None else x + ending
            else:
                x = self._after(i, layer(x, frames, ending, placement, seen=seen))
            skip = None if i in self.spans else skip
        return x, skip

    def _recomputed(
        self, layers: range, x: Tensor, skip: Tensor | None, frames: Frames, seen: list[Seen]
    ) -> tuple[Tensor, Tensor | None]:
        """`run`, keeping its inputs alone; what it sees counts the first time, not when it runs again."""
        first = [seen]
        return checkpoint(
            lambda x, skip: self.run(layers, x, skip, frames, first.pop() if first else []),
            x,
            skip,
            use_reentrant=False,
            preserve_rng_state=self.options.dropout > 0,
        )

    def _after(self, i: int, h: Tensor) -> Tensor:
        if self.training and self.options.dropout:
            h = h * F.dropout(h.new_ones(1, *h.shape[1:]), self.options.dropout)
        return self.row_convolutions[str(i)](h) if str(i) in self.row_convolutions else h

    @torch.no_grad()
    def _initialize(self) -> None:
        H = self.options.hidden_size
        for i, layer in enumerate(self.layers, start=1):
            assert isinstance(layer, RecurrentLayer)
            if self.options.initialization == "uniform":
                layer.weight_ih.uniform_(-(H**-0.5), H**-0.5)
                layer.weight_hh.uniform_(-(H**-0.5), H**-0.5)
                continue
            layer.weight_ih.normal_(std=float(layer.weight_ih.shape[1] ** -0.5))
            if self.options.initialization == "identity":
                layer.weight_hh.normal_(std=0.1 * H**-0.5).diagonal().add_(0.5)
            elif self.options.initialization == "gaussian":
                layer.weight_hh.normal_(std=0.5 * H**-0.5)
            else:
                nn.init.orthogonal_(layer.weight_hh, gain=0.5)
            if i in self.spans:
                gain = len(self.spans) ** -0.5
                (layer.weight_ih if layer.norm is None else layer.norm.weight).mul_(gain)
