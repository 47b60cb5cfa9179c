"""`python -m experiments.whole_step.account`: what the recurrent stack's forward and backward consist of, by counting.

No GPU is needed and none is used. Per layer, for the default network of 88 x 1152 at a mini-batch of 4 and 350 time
steps:

* launches, FLOPs of products, bytes that pointwise passes and sums move: the step is traced on tensors without memory,
  and each operator counts as the launches that it takes on CUDA (`LAUNCHES`; views take none);
* host time: the step on the CPU at sizes at which nothing costs time, its kernels replaced by allocations, so what is
  left is Python, autograd and the dispatcher. A launch itself costs the host 3 to 10 us more on CUDA.

From these and rates that are given (by default measured ones, docs/MEMORY.md says where), the time that each would take
were it alone.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from experiments.memory.bare_step import StepOptions
from experiments.memory.command import PRECISIONS
from experiments.whole_step.stack_step import StackStep
from models.stack import StackOptions

VIEWS = frozenset(
    {"t", "view", "select", "slice", "unbind", "detach", "empty", "empty_like", "new_empty", "device", "promote_types"}
    | {"_unsafe_view", "transpose", "expand", "unsqueeze", "alias", "as_strided"}
)
LAUNCHES = {"rnn": 2, "rnn_backward": 2, "norm_statistics": 2}
"""On CUDA: the recurrence clears its workspace, batch norm sums stretches of rows and then the stretches."""
PRODUCTS = frozenset({"mm", "addmm"})


@dataclass
class Account:
    """Of one direction of the whole stack: launches by operator, FLOPs of products, bytes moved outside of products and
    recurrence."""

    launches: Counter[str] = field(default_factory=Counter)
    flops: int = 0
    bytes: int = 0


class _Counting(TorchDispatchMode):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account = account

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        if name in VIEWS:
            return out
        self.account.launches[name] += LAUNCHES.get(name, 1)
        if name in PRODUCTS:
            left, right = args[-2:]
            self.account.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        elif not name.startswith("rnn"):
            # What is written in place is read and written.
            written = [arg for arg, spec in zip(args, func._schema.arguments, strict=False) if _is_written(spec)]
            moved = [leaf for leaf in tree_leaves((args, out, written)) if isinstance(leaf, Tensor)]
            self.account.bytes += sum(tensor.nbytes for tensor in moved)
        return out


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def account(options: StepOptions) -> dict[str, Account]:
    """Of `forward` and of `backward`; gradients do not exist before, as in training."""
    found = {"forward": Account(), "backward": Account()}
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = StackStep(options, torch.device("cpu"))
        with _Counting(found["forward"]):
            h = step.forward()
        with _Counting(found["backward"]):
            h.backward(step.gradient)
    return found


def host_seconds(num_layers: int, precision: Any = "bf16-true", rounds: int = 20) -> dict[str, float]:
    """Of this process's own time, a layer, for `forward` and `backward`; the fastest round counts."""

    def once(depth: int) -> list[float]:
        step = StackStep(StepOptions(StackOptions(depth, 16, activation="relu"), 1, 2, precision), torch.device("cpu"))
        times = []
        for _ in range(rounds):
            step.stack.zero_grad(set_to_none=True)
            begin = time.thread_time()
            h = step.forward()
            middle = time.thread_time()
            h.backward(step.gradient)
            times.append((middle - begin, time.thread_time() - middle))
        return [min(column) for column in zip(*times, strict=True)]

    with _without_kernels():
        short, long = once(8), once(8 + num_layers)
    return {name: (b - a) / num_layers for name, a, b in zip(("forward", "backward"), short, long, strict=True)}


@contextmanager
def _without_kernels() -> Iterator[None]:
    """The recurrence and batch norm's passes give memory that holds nothing."""
    from models import moments_kernels, sequence_moments
    from prnn_ext import reference

    def like_first(first: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return torch.empty_like(first), first.new_empty(first.shape[1:])

    def vectors(z: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        moments = z.new_empty(2, z.shape[2], dtype=torch.float32)
        return moments, torch.empty_like(moments)

    def sums(delta: Tensor, z: Tensor, moments: Tensor) -> Tensor:
        return moments.new_empty(1, 2, z.shape[2])

    def gradients(delta: Tensor, z: Tensor, mask: Tensor, moments: Tensor, gamma: Tensor, *_: Any) -> Any:
        return torch.empty_like(gamma), torch.empty_like(gamma)

    with ExitStack() as stack:
        for place, name, stand_in in (
            (reference, "forward", like_first),
            (reference, "backward", like_first),
            (sequence_moments, "_launches", lambda z: True),
            (moments_kernels, "norm_statistics", vectors),
            (moments_kernels, "norm_gradient_sums", sums),
            (moments_kernels, "norm_gradient", gradients),
        ):
            stack.enter_context(patch.object(place, name, stand_in))
        yield


def main() -> None:
    """Print the account."""
    parser = argparse.ArgumentParser(prog="python -m experiments.whole_step.account", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--num-layers", type=int, default=88)
    parser.add_argument("--hidden-size", type=int, default=1152)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--frames", type=int, default=350)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16-true")
    parser.add_argument("--tflops", type=float, default=780.0, help="of a large product (default: 780, measured, H200)")
    parser.add_argument("--terabytes", type=float, default=4.3, help="a second, of a large copy (default: 4.3)")
    parser.add_argument("--step-us", type=float, nargs=2, default=[0.95, 0.98], help="recurrence, forward and backward")
    options = parser.parse_args()
    stack = StackOptions(options.num_layers, options.hidden_size, activation="relu")
    found = account(StepOptions(stack, options.batch_size, options.frames, options.precision))
    host = host_seconds(40, options.precision)
    for (name, direction), us in zip(found.items(), options.step_us, strict=True):
        layers = options.num_layers
        each = ", ".join(f"{op} {n / layers:.3g}" for op, n in direction.launches.most_common())
        print(f"{name}, a layer: {direction.launches.total() / layers:.1f} launches ({each})")
        print(
            f"    host {1e6 * host[name]:.0f} us without launches; recurrence {us * options.frames:.0f} us on the GPU"
        )
        product = direction.flops / layers / options.tflops / 1e6
        moved = direction.bytes / layers / options.terabytes / 1e6
        print(
            f"    products {direction.flops / layers / 1e9:.3g} GFLOP, {product:.1f} us; other passes "
            f"{direction.bytes / layers / 1e6:.3g} MB, {moved:.1f} us"
        )


if __name__ == "__main__":
    main()
