"""What the host does for a launch, counted on a stand-in for the driver: a deep network launches hundreds a step.

Times are measured by ``tests/gpu/host_time.py``; counts do not depend on how busy a machine is.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prnn_ext import build, persistent
from prnn_ext.tiles import SIDES
from tests.prnn_ext.stand_in_driver import StandInDriver, forget, install

T, B, H = 3, 4, 64


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInDriver]:
    yield install(monkeypatch)
    forget()


@pytest.fixture
def arguments() -> tuple:
    x, weight = torch.randn(T, B, H).bfloat16(), torch.randn(H, H).bfloat16()
    return x, weight, None, torch.tensor([3, 2, 1, 3], dtype=torch.int32), torch.ones(H), torch.zeros(H)


class _Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **kwargs or {})


def python_calls(work: Callable[[], object]) -> int:
    """Python functions entered."""
    entered = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    gc.disable()  # Hypothesis counts collections in Python
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return entered - 1  # `work` itself


def halves(arguments: tuple) -> dict[str, Callable[[], object]]:
    x, weight, h_0, lengths, *_ = arguments
    last = torch.zeros(B, H, dtype=x.dtype)
    return {
        "forward": lambda: persistent.forward(*arguments, "relu", False),
        "backward": lambda: persistent.backward(x, last, x, weight, h_0, lengths, "relu", True),
    }


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_a_launch_is_two_driver_calls_and_three_allocations(half, driver, arguments):
    run = halves(arguments)[half]
    run()
    driver.calls.clear()
    with _Ops() as ops:
        for _ in range(10):
            run()
    assert driver.calls == {"cuLaunchKernelEx": 10, "cuMemsetD32Async": 10}
    assert ops.names == ["aten::empty_like", "aten::new_empty", "aten::new_empty"] * 10


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_nothing_is_planned_or_compiled_twice(half, driver, arguments, monkeypatch):
    """Twelve Python functions at most, the stand-in's four among them; 79 when each launch was prepared anew."""
    run = halves(arguments)[half]
    run()
    for name in ("plan_tiles", "_kernel"):
        monkeypatch.setattr(persistent, name, lambda *_: pytest.fail("planned again"))
    assert python_calls(run) <= 12


def test_the_kernel_is_given_what_the_caller_gave(driver, arguments):
    x, weight, _, lengths, scale, shift = arguments
    for stream, reverse in ((0, False), (7, True), (9, False)):
        driver.stream = stream
        output, last = persistent.forward(*arguments, "tanh", reverse)
        workspace, words = driver.cleared
        tiles = persistent.plan_tiles(H, B, "bfloat16", False, persistent._gpu(0))
        assert 4 * words == tiles.workspace_bytes
        given = (x, weight, None, lengths, scale, shift, None, output, last)
        assert driver.given[:9] == tuple(0 if tensor is None else tensor.data_ptr() for tensor in given)
        assert driver.given[9] == workspace
        assert driver.given[11:] == (int(persistent.wait_limit * 1e9), T, B, int(reverse))
        assert driver.launched_on == stream


def test_where_the_sides_of_l2_are_known_the_workspace_holds_both_copies(driver, arguments, monkeypatch):
    gpu = replace(build.GPUS["sm_90a"], sides=SIDES["NVIDIA H200"])
    monkeypatch.setattr(persistent, "_gpu", lambda device: gpu)
    for run in halves(arguments).values():
        run()
        assert 4 * driver.cleared[1] == 4 << 17
        assert driver.cleared[0] == driver.given[9]


def test_a_view_that_starts_anywhere_is_given_aligned(driver, arguments):
    flat = torch.cat([torch.zeros(1, dtype=torch.bfloat16), arguments[0].flatten()])
    persistent.forward(flat[1:].view(T, B, H), *arguments[1:], "relu", False)
    assert all(pointer % 16 == 0 for pointer in driver.given[:10])


def test_a_launch_that_gave_up_is_told_at_the_next(driver, arguments):
    run = halves(arguments)["forward"]
    run()
    persistent._status(0)[0] = 1
    with pytest.raises(persistent.KernelStalledError, match="gave up"):
        run()
    run()


def test_torch_has_what_a_launch_asks_it_for():
    """Private to torch, used by the code it compiles: no object of a stream is made, no device is looked up."""
    assert callable(torch._C._cuda_getCurrentRawStream)
    assert callable(torch._C._cuda_getDevice)
