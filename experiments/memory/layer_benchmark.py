"""`python -m experiments.memory.layer_benchmark`: a recurrent layer as one function against one made of parts.

Forward + backward on a CPU, float32, one thread, ragged batches; the two take turns, milliseconds are minima.
"""

import torch

from experiments.throughput.timing import alternate
from models.frames import Frames
from models.recurrent_layer import RecurrentLayer

SHAPES = ((150, 8, 128), (150, 4, 512), (350, 4, 1152))
"""T time steps, B utterances, H units."""


def main() -> None:
    """Print a line a shape."""
    torch.set_num_threads(1)
    for T, B, H in SHAPES:
        layer = RecurrentLayer(H, H, "clipped_relu", "batch")
        with torch.no_grad():
            layer.weight_ih.normal_(std=H**-0.5)
            layer.weight_hh.normal_(std=0.5 * H**-0.5)
        frames = Frames.of(torch.linspace(T // 2, T, B).long(), T)
        x, gradient = (torch.randn(T, B, H) * frames.mask).requires_grad_(), torch.randn(T, B, H)
        leaves = [x, *layer.parameters()]
        times = alternate(
            {
                "one function": lambda: torch.autograd.grad(layer(x, frames), leaves, gradient),  # noqa: B023
                "composed": lambda: torch.autograd.grad(
                    layer._composed(x, frames, None, "after_batch_norm"),  # noqa: B023
                    leaves,  # noqa: B023
                    gradient,  # noqa: B023
                ),
            },
            device=torch.device("cpu"),
            rounds=9,
        )
        print(f"{T} x {B} x {H}: " + ", ".join(f"{name} {1e3 * timing.low:.4g} ms" for name, timing in times.items()))


if __name__ == "__main__":
    main()
