"""The networks that the memory and whole-step studies run: depths x widths x mini-batches x precisions.

What is not given is a GPU's size or, where there is none, one that a CPU does in seconds.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.memory.bare_step import StepOptions

PRECISIONS = ("32", "bf16-mixed", "bf16-true")
POLICIES = ("save", "recompute", "offload")
GPU: dict[str, Any] = {"depths": [8, 48, 88], "widths": [1152], "batches": [4, 64], "frames": 350}
CPU: dict[str, Any] = {"depths": [2, 4, 8], "widths": [64], "batches": [4], "frames": 100}


def networks(
    gpu: bool,
    depths: Sequence[int] | None,
    widths: Sequence[int] | None,
    batches: Sequence[int] | None,
    frames: int | None,
    precisions: Sequence[str],
    optimizer: Any = "adamw",
    **stack: Any,
) -> "list[StepOptions]":
    """Every combination, small sizes first, under `save`; `stack` holds more arguments of `StackOptions`.

    On a CPU with a small front-end on mel bins; with ReLU, which torch.nn.RNN has too.
    """
    from experiments.memory.bare_step import StepOptions
    from models.features import FeatureOptions
    from models.front_end import FrontEndOptions
    from models.stack import StackOptions

    usual = GPU if gpu else CPU
    small: dict[str, Any] = {} if gpu else {"features": FeatureOptions("log_mel"), "front_end": FrontEndOptions(8)}
    return [
        StepOptions(
            StackOptions(depth, width, activation="relu", **stack),
            batch,
            frames or usual["frames"],
            precision,  # type: ignore[arg-type]
            optimizer,
            **small,
        )
        for precision, width, depth, batch in itertools.product(
            precisions, widths or usual["widths"], depths or usual["depths"], batches or usual["batches"]
        )
    ]


def add_size_arguments(parser: Any) -> None:
    """Depths, mini-batches, time steps and device, which both studies ask for alike."""
    from experiments.card import count
    from experiments.option_lists import integers

    def usual(key: str) -> str:
        gpu, cpu = (sizes[key] for sizes in (GPU, CPU))
        return f"default: {_words(gpu)}; on a CPU {_words(cpu)}"

    parser.add_argument("--depths", type=integers, help=f"comma-separated layers ({usual('depths')})")
    parser.add_argument("--batch-sizes", type=integers, help=f"comma-separated mini-batches ({usual('batches')})")
    parser.add_argument("--frames", type=count, help=f"time steps of the stack, 20 ms each ({usual('frames')})")
    parser.add_argument("--no-baseline", action="store_true", help="leave the network of ordinary layers out")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
