"""Where the host's time of a launch goes, in microseconds a call: the driver's part, ours, torch's.

    PYTHONPATH=. python tests/gpu/host_time.py

Without a GPU the same Python runs on CPU tensors over a stand-in for the driver, whose own calls then cost nearly
nothing, and processor time is measured, which a busy machine leaves alone. Each figure is the lowest mean of 40
samples of 25 calls; on a GPU the stream is drained between samples and a call is never behind a full queue.
"""

import time
from collections.abc import Callable, Iterator

import pytest
import torch

import prnn_ext
from models.frames import Frames
from models.recurrent_layer import RecurrentLayer
from prnn_ext import driver, persistent
from tests.prnn_ext.stand_in_driver import install

T, B, H = 1, 4, 64
ON_GPU = torch.cuda.is_available()
CALLS, SAMPLES = 25, 40


def microseconds(call: Callable[[], object]) -> float:
    clock = time.perf_counter if ON_GPU else time.thread_time
    best = float("inf")
    for _ in range(SAMPLES):
        started = clock()
        for _ in range(CALLS):
            call()
        best = min(best, clock() - started)
        if ON_GPU:
            torch.cuda.synchronize()
    return best / CALLS * 1e6


def pieces() -> Iterator[tuple[str, Callable[[], object]]]:
    device = "cuda" if ON_GPU else "cpu"
    x, weight = (torch.randn(size, device=device).bfloat16() for size in ((T, B, H), (H, H)))
    lengths = torch.full((B,), T, dtype=torch.int32, device=device)
    scale, shift, last = torch.ones(H, device=device), torch.zeros(H, device=device), x[0].clone()
    half = persistent._half(H, B, torch.bfloat16, False, "relu", x.device.index)
    words = torch.zeros(half.workspace_bytes // 4, dtype=torch.int32, device=device)
    stream = persistent.current_stream(0)
    numbers = (x.data_ptr(), weight.data_ptr(), 0, 0, 0, 0, 0, x.data_ptr(), last.data_ptr(), words.data_ptr())
    numbers = (*numbers, half.status_address, 10**10, 0, B, False)  # no time steps: the kernel ends at once
    kernel = half.prepared._kernel
    tiles = persistent.plan_tiles(H, B, "bfloat16", False, persistent._gpu(0))
    shape = (tiles.blocks, 1, 1), (tiles.threads, 1, 1), tiles.shared_bytes
    alone = kernel.prepare(*shape, cooperative=False)
    for prepared in (half.prepared, alone):
        prepared(stream, numbers)
    raw = kernel._driver
    address = kernel._arguments.address
    for name, prepared in (("cooperative", half.prepared), ("not cooperative", alone)):
        configuration = prepared._configuration
        yield (
            f"driver: launch, {name}",
            lambda configuration=configuration: raw.cuLaunchKernelEx(configuration, kernel._function, address, 0),
        )
    yield "driver: clear the workspace", lambda: raw.cuMemsetD32Async(words.data_ptr(), 0, len(words), stream)
    yield "torch: empty_like", lambda: torch.empty_like(x)
    yield "torch: zeros of a workspace", lambda: torch.zeros(half.workspace_bytes, dtype=torch.uint8, device=device)
    yield "torch: a launch of its own (add_)", lambda: shift.add_(1.0)
    if ON_GPU:
        yield "torch: current_stream().cuda_stream", lambda: torch.cuda.current_stream().cuda_stream
    yield "prepared launch", lambda: half.prepared(driver.current_stream(0) if ON_GPU else 0, numbers)
    folded = lengths, scale, shift
    yield "persistent.forward", lambda: persistent.forward(x, weight, None, *folded, "relu", False)
    yield "persistent.backward", lambda: persistent.backward(x, last, x, weight, None, lengths, "relu", False)
    arguments = (x, weight, None, *folded, "relu", False, "persistent")
    with torch.no_grad():
        yield "torch.ops.prnn_ext.rnn", lambda: torch.ops.prnn_ext.rnn.default(*arguments)
        backward = (x, last, x, weight, None, lengths, "relu", False, "persistent")
        yield "torch.ops.prnn_ext.rnn_backward", lambda: torch.ops.prnn_ext.rnn_backward.default(*backward)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()

    def recorded() -> torch.Tensor:
        return prnn_ext.rnn(*leaves, lengths=lengths, activation="relu", backend="persistent")[0]

    yield "prnn_ext.rnn, recorded for backward", recorded
    yield "... and its backward, dU included", lambda: torch.autograd.grad(recorded(), leaves, x)
    # The deep stack calls both ops from one autograd function a layer, so the op itself records nothing.
    layer = RecurrentLayer(H, H, "relu", "batch", "persistent").to(device, torch.bfloat16)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    frames, where = Frames.of(lengths, T), "" if ON_GPU else ", CPU's products and batch norm included"

    def through() -> torch.Tensor:
        return layer(leaves[0], frames, seen=[])

    yield f"a layer of the deep stack{where}", through
    yield f"... and its backward{where}", lambda: torch.autograd.grad(through(), [leaves[0], *layer.parameters()], x)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU:
            install(patch)
        print(torch.cuda.get_device_name(0) if ON_GPU else "no GPU: a stand-in for the driver", torch.__version__)
        for name, call in pieces():
            print(f"{microseconds(call):8.2f} us  {name}", flush=True)
