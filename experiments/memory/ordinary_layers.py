"""The same network from ordinary parts: torch.nn.Linear, torch.nn.BatchNorm1d and torch.nn.RNN.

    x W^T -> BatchNorm1d over [T * B, H] -> torch.nn.RNN(H, H, relu, no bias), cuDNN's on a GPU

It is what a user would write, and what memory and whole-step speed are compared with: skips, row convolutions,
front-end and head are the very same code. Two differences: torch.nn.RNN brings an input matrix of its own [H,H] (its
cost is also taken out where speeds are compared), and neither part knows lengths, so batches must be full.
"""

from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from models.frames import Frames
from models.stack import RecurrentStack, StackOptions


class OrdinaryLayer(nn.Module):
    """Takes the place of a `RecurrentLayer`."""

    def __init__(self, input_size: int, hidden_size: int, activation: str) -> None:
        super().__init__()
        if activation not in ("relu", "tanh"):
            raise ValueError(f"activation {activation!r} was given; torch.nn.RNN has relu and tanh: choose one.")
        self.linear = nn.Linear(input_size, hidden_size, bias=False)
        self.norm = nn.BatchNorm1d(hidden_size)
        self.rnn = nn.RNN(hidden_size, hidden_size, nonlinearity=activation, bias=False)
        # As stable as the project's own start: spectral radius 0.5.
        U: Any = self.rnn.weight_hh_l0
        nn.init.normal_(U, std=0.5 * hidden_size**-0.5)

    def forward(
        self, x: Float[Tensor, "T B D"], frames: Frames, skip: Tensor | None = None, *_: Any, seen: Any = None
    ) -> Float[Tensor, "T B H"]:
        """h. Raises ValueError for a skip inside the layer."""
        if skip is not None:
            raise ValueError("a skip inside the layer was given; torch.nn.RNN has none: use after_activation.")
        z = self.linear(x)
        return self.rnn(self.norm(z.flatten(0, 1)).view_as(z))[0]


def ordinary_stack(input_size: int, options: StackOptions) -> RecurrentStack:
    """A `RecurrentStack` whose layers are ordinary; it saves everything, since that is what they do."""
    stack = RecurrentStack(input_size, replace(options, memory_policy="save"))
    H = options.hidden_size
    stack.layers = nn.ModuleList(
        OrdinaryLayer(H if i else input_size, H, options.activation) for i in range(options.num_layers)
    )
    return stack
