"""Where a step's time goes: the GPU's kernels (on a CPU PyTorch's operators) of one profiled step, by what they do.

Kernels are known by name alone; what no pattern names is `other`, so a part is a lower bound and nothing is lost.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

PATTERNS = (
    ("recurrence", r"recurrence|prnn_ext|rnn|RNN|LSTM"),
    ("CTC", r"ctc"),
    ("optimiser", r"adam|sgd|multi_tensor|foreach"),
    ("features", r"fft"),
    ("convolutions", r"conv|cudnn|cutlass.*(fprop|dgrad|wgrad)|implicit|nchw|nhwc"),
    ("batch norm", r"batch_norm|batchnorm|tile_moments|folded_moments|tile_sums|input_gradient|prnn_norm"),
    ("products", r"gemm|nvjet|cutlass|cublas|aten::(add)?mm|aten::bmm"),
    ("pointwise and sums", r"elementwise|vectorized|reduce|softmax|copy|fill|cat|memcpy|memset|aten::"),
)


def parts_of(step: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Milliseconds by part, the largest first."""
    from torch.profiler import ProfilerActivity, profile

    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiled:
        step()
        if gpu:
            torch.cuda.synchronize()
    sums: dict[str, float] = {}
    for name, micro in _kernels(profiled) if gpu else _operators(profiled):
        if micro > 0:
            part = part_of(name)
            sums[part] = sums.get(part, 0.0) + micro / 1e3
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def part_of(name: str) -> str:
    """What a kernel of this name does."""
    return next((part for part, pattern in PATTERNS if re.search(pattern, name, re.IGNORECASE)), "other")


def _kernels(profiled: Any) -> Iterator[tuple[str, float]]:
    """Name and microseconds of what ran on the GPU. cuDNN's network launches a kernel or two a time step and layer, so
    many that the profiler's own tables would be slow."""
    for event in profiled.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA and not event.is_user_annotation():
            yield event.name(), event.duration_ns() / 1e3


def _operators(profiled: Any) -> Iterator[tuple[str, float]]:
    for event in profiled.key_averages():
        yield event.key, event.self_cpu_time_total
