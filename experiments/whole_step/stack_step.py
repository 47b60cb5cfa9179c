"""Forward and backward of the recurrent stack alone, for a fixed gradient at its output.

The stack's input is as wide as its layers, as in the published comparison, and needs a gradient, as in training.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.memory.bare_step import StepOptions, store
from experiments.memory.ordinary_layers import ordinary_stack
from models.stack import RecurrentStack

LARGE = 8192
"""Of the square product that says how fast a GPU multiplies; a CPU gets a small one, and no roofline."""


class StackStep:
    """One stack on one device."""

    def __init__(self, options: StepOptions, device: torch.device, ordinary: bool = False) -> None:
        self.options, self.device = options, device
        B, T, H = options.batch_size, options.frames, options.stack.hidden_size
        dtype = torch.float32 if options.precision == "32" else torch.bfloat16
        torch.manual_seed(0)
        with device:
            self.stack = (ordinary_stack if ordinary else RecurrentStack)(H, options.stack).train()
            if options.precision == "bf16-true":
                store(self.stack, torch.bfloat16)
            # Time-major underneath, as the front-end hands it on.
            self.x = torch.randn(T, B, H, dtype=dtype).transpose(0, 1).requires_grad_()
            self.lengths = torch.full((B,), T)
            self.gradient = torch.randn(T, B, H, dtype=dtype)

    def forward(self) -> Tensor:
        """The stack's output."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.precision == "bf16-mixed"):
            return self.stack(self.x, self.lengths)[0]

    def both(self) -> None:
        """Forward and backward onto gradients that are there already, so that a peak over it is activations alone."""
        self.forward().backward(self.gradient)

    def fresh(self) -> None:
        """Forward and backward with gradients made anew, as in training: what is timed."""
        self.stack.zero_grad()
        self.x.grad = None
        self.both()

    def plan(self) -> str:
        """The backend that the recurrence takes here."""
        import prnn_ext

        layer: Any = self.stack.layers[0]
        x = self.gradient
        lengths = self.lengths.to(torch.int32)
        U = layer.weight_hh.detach().to(x.dtype)
        return prnn_ext.plan(x, U, None, lengths, activation=layer.activation, backend=layer.backend).backend

    def parts(self) -> dict[str, Callable[[], object]]:
        """What a roofline is made of. `large`: one large product; `own_matrix`: what an input matrix [H,H] costs a
        layer, forward and backward; `recurrence`: that of one layer, forward and backward."""
        x = self.gradient
        rows, H = x.flatten(0, 1), x.shape[2]
        weight = torch.randn(H, H, device=self.device, dtype=x.dtype) * (0.5 * H**-0.5)
        size = LARGE if self.device.type == "cuda" else 512
        square = torch.randn(size, size, device=self.device, dtype=x.dtype)
        lengths = self.lengths.to(torch.int32)
        scale, shift = (torch.full((H,), value, device=self.device) for value in (1.0, 0.1))
        last = x.new_zeros(x.shape[1:])

        def own_matrix() -> None:
            for left, right in ((rows, weight.t()), (rows, weight), (rows.t(), rows)):
                left @ right

        @torch.no_grad()
        def recurrence() -> None:
            h, _ = torch.ops.prnn_ext.rnn.default(x, weight, None, lengths, scale, shift, "relu", False, "auto")
            torch.ops.prnn_ext.rnn_backward.default(x, last, h, weight, None, lengths, "relu", False, "auto")

        return {"large": lambda: square @ square, "own_matrix": own_matrix, "recurrence": recurrence}
