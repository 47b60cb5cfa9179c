"""Which of the front-end's convolutions is slow on a GPU, in which layout and precision, and with how much workspace.

    PYTHONPATH=. python tests/gpu/convolution_probe.py

Both convolutions of the paper's front-end on 1,400 feature frames (350 are those of 7 s at stride 4; the front-end
halves them), forward and each gradient alone: median of 10, the workspace beside inputs and results, and the longest
kernel. cuDNN chooses by rules of thumb, which are wrong by a factor of 30 for some of these shapes; `benchmark` has it
try instead, once a shape, which training with many shapes cannot afford.
"""

import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
FRAMES = 1400 if GPU else 40
# image channels and bins; kernel; stride; padding
LAYERS = {
    "first": ((1, 161), (41, 11), (2, 2), (20, 5)),
    "second": ((32, 81), (21, 11), (2, 1), (10, 5)),
}
CHANNELS = 32
BATCHES = [int(n) for n in os.environ.get("PROBE_BATCHES", "4,16,64").split(",")]
VARIANTS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": torch.bfloat16},
    "bf16, channels last": {"dtype": torch.bfloat16, "layout": torch.channels_last},
    "bf16, time before frequency": {"dtype": torch.bfloat16, "turned": True},
    "bf16, 8 input channels of which 7 are 0": {"dtype": torch.bfloat16, "layout": torch.channels_last, "filled": 8},
    "fp16": {"dtype": torch.float16},
    "fp32 with TF32": {"dtype": torch.float32, "tf32": True},
    "fp32": {"dtype": torch.float32},
    "bf16, benchmark": {"dtype": torch.bfloat16, "benchmark": True},
}


def main() -> None:
    """One table a layer and mini-batch."""
    for batch in BATCHES:
        for name in LAYERS:
            print(
                f"{name} convolution, mini-batch {batch}: ms (MiB of workspace) forward, dx, dW; longest kernel of all"
            )
            for variant, options in VARIANTS.items():
                print(f"  {variant:40s} {row(name, batch, **options)}", flush=True)


def row(
    name: str,
    batch: int,
    dtype: torch.dtype,
    layout: torch.memory_format = torch.contiguous_format,
    turned: bool = False,
    filled: int = 1,
    tf32: bool = False,
    benchmark: bool = False,
) -> str:
    """Forward and both gradients of one convolution."""
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.allow_tf32 = tf32
    (channels, bins), kernel, stride, padding = LAYERS[name]
    frames = FRAMES // (1 if name == "first" else 2)
    size = (frames, bins) if turned else (bins, frames)
    kernel, stride, padding = (p[::-1] if turned else p for p in (kernel, stride, padding))
    inputs = max(channels, filled)
    image = torch.randn(batch, inputs, *size, device=DEVICE, dtype=dtype).to(memory_format=layout)
    weight = torch.randn(CHANNELS, inputs, *kernel, device=DEVICE, dtype=dtype).to(memory_format=layout)
    y = F.conv2d(image, weight, None, stride, padding)
    grad = torch.randn_like(y)

    def backward(mask: list[bool]) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(
            grad, image, weight, None, stride, padding, [1, 1], False, [0, 0], 1, mask
        )

    calls = [lambda: F.conv2d(image, weight, None, stride, padding), backward([False, True, False])]
    if name == "second":
        calls.insert(1, backward([True, False, False]))
    try:
        return "  ".join(timed(call) for call in calls) + f"  {longest(calls)}"
    except RuntimeError as error:
        return str(error).splitlines()[0]


def timed(call: Callable[[], object]) -> str:
    """Milliseconds and MiB."""
    call()
    if not GPU:
        return "-"
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    workspace = torch.cuda.max_memory_allocated() - before - results(kept)
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return f"{statistics.median(times):7.3f} ({workspace / 2**20:5.0f})"


def results(kept: object) -> int:
    tensors = kept if isinstance(kept, tuple) else (kept,)
    return sum(t.nbytes for t in tensors if isinstance(t, Tensor))


def longest(calls: list[Callable[[], object]]) -> str:
    if not GPU:
        return "-"
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for call in calls:
            call()
        torch.cuda.synchronize()
    events = [e for e in profiled.profiler.kineto_results.events() if e.device_type() == torch.autograd.DeviceType.CUDA]
    worst = max(events, key=lambda e: e.duration_ns())
    return f"{worst.duration_ns() / 1e6:.3f} ms {worst.name()[:90]}"


if __name__ == "__main__":
    main()
