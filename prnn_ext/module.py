"""`PersistentRNN`: a one-layer `torch.nn.RNN` on `prnn_ext.rnn`, with its parameter names and its call.

    h_t = f(x_t W_ih^T + b_ih + b_hh + h_{t-1} W_hh^T)

The input projection of all time steps is one GEMM outside the recurrence. Beyond `torch.nn.RNN`: clipped ReLU, ragged
batches by ``lengths`` in any order, and a backend by name. What one layer of the op cannot do - several layers,
two directions, packed sequences, second derivatives - is refused with a sentence.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prnn_ext.op import rnn
from prnn_ext.planning import BACKENDS
from prnn_ext.reference import ACTIVATIONS


class PersistentRNN(nn.Module):
    """Drop-in for ``torch.nn.RNN(input_size, hidden_size)``; loads its state dict.

    Args:
        input_size, hidden_size: features of the input and of the state.
        num_layers: 1; stack modules for more.
        nonlinearity: ``"tanh"`` (default, as in `torch.nn.RNN`), ``"relu"`` or ``"clipped_relu"`` (min(max(v, 0), 20)).
        bias: whether ``bias_ih_l0`` and ``bias_hh_l0`` exist.
        batch_first: input and output are [B, T, features] instead of [T, B, features].
        dropout: 0; it acts between layers, of which there is one.
        bidirectional: False.
        backend: see `prnn_ext.rnn`.

    Raises ``ValueError`` for arguments outside these.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str = "auto",
    ):
        super().__init__()
        if num_layers != 1:
            raise ValueError(
                f"num_layers is {num_layers}; a PersistentRNN is one layer: stack several in an nn.ModuleList."
            )
        if bidirectional:
            raise ValueError(
                "bidirectional is True; a PersistentRNN runs one way: for the other use prnn_ext.rnn(reverse=True)."
            )
        if dropout:
            raise ValueError(f"dropout is {dropout}; it acts between layers and there is one: set it to 0.")
        if nonlinearity not in ACTIVATIONS:
            raise ValueError(f"nonlinearity is {nonlinearity!r}; choose one of {', '.join(ACTIVATIONS)}.")
        if backend not in BACKENDS:
            raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}.")
        if input_size < 1 or hidden_size < 1:
            raise ValueError(f"input_size is {input_size} and hidden_size {hidden_size}; both must be at least 1.")
        self.input_size, self.hidden_size = input_size, hidden_size
        self.num_layers, self.bidirectional, self.dropout, self.proj_size = 1, False, 0.0, 0
        self.nonlinearity, self.bias, self.batch_first, self.backend = nonlinearity, bias, batch_first, backend
        self.weight_ih_l0 = nn.Parameter(torch.empty(hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh_l0 = nn.Parameter(torch.empty(hidden_size, hidden_size, device=device, dtype=dtype))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
            self.bias_hh_l0 = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def mode(self) -> str:
        """As `torch.nn.RNN` names it: ``"RNN_TANH"``, ``"RNN_RELU"``; ``"RNN_CLIPPED_RELU"`` it does not have."""
        return f"RNN_{self.nonlinearity.upper()}"

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """Those of the one layer: ``[[weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0]]``, without biases two."""
        return [list(self.parameters())]

    def flatten_parameters(self) -> None:
        """Nothing to do: the weights are read where they lie, cuDNN's one buffer is not needed."""

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden_size), as `torch.nn.RNN`."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: Tensor, hx: Tensor | None = None, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``output`` [T, B, H] (``[B, T, H]`` if batch_first, ``[T, H]`` unbatched) and ``h_n`` [1, B, H] (``[1, H]``).

        ``input`` [T, B, input_size] (or [B, T, .], or unbatched [T, .]); ``hx`` [1, B, H] (or [1, H]), zero if None;
        ``lengths`` integers [B] in frames, in any order: the output is zero past them and h_n is the state at them.
        """
        if not isinstance(input, Tensor):
            raise ValueError(
                f"input is a {type(input).__name__}; give a padded tensor and its lengths: rnn(input, lengths=lengths)."
            )
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"input has shape {list(input.shape)}; it must be 2-D or 3-D with {self.input_size} features last."
            )
        self._check_dtype("input", input)
        if hx is not None:
            self._check_dtype("hx", hx)
        batched = input.dim() == 3
        state = [1, input.shape[0 if self.batch_first else 1], self.hidden_size] if batched else [1, self.hidden_size]
        if hx is not None and list(hx.shape) != state:
            raise ValueError(f"hx has shape {list(hx.shape)}; for input {list(input.shape)} it must be {state}.")
        bias = self.bias_ih_l0 + self.bias_hh_l0 if self.bias else None
        term = F.linear(input, self.weight_ih_l0, bias)
        if not batched:
            term = term[:, None]
        elif self.batch_first:
            term = term.transpose(0, 1)
        h_0 = None if hx is None else hx[0] if batched else hx
        output, h_n = rnn(term, self.weight_hh_l0, h_0, lengths, activation=self.nonlinearity, backend=self.backend)
        if not batched:
            return output[:, 0], h_n
        return output.transpose(0, 1) if self.batch_first else output, h_n[None]

    def _check_dtype(self, name: str, given: Tensor) -> None:
        weights, device = self.weight_ih_l0.dtype, given.device.type
        casts = device != "meta" and torch.is_autocast_enabled(device)  # autocast casts, float64 excepted
        if given.dtype != weights and not (casts and given.is_floating_point() and given.dtype != torch.float64):
            raise ValueError(
                f"{name} is {given.dtype} and the weights are {weights}; convert it by .to({weights}), or the module."
            )

    def extra_repr(self) -> str:
        """What was given and is no default, as `torch.nn.RNN` shows it, and nonlinearity and backend likewise."""
        given = {"nonlinearity": (self.nonlinearity, "tanh"), "bias": (self.bias, True)}
        given |= {"batch_first": (self.batch_first, False), "backend": (self.backend, "auto")}
        shown = [f"{name}={value}" for name, (value, default) in given.items() if value != default]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *shown])
