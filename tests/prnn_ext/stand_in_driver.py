"""A CUDA driver that does nothing but count: the whole host path of a launch on CPU tensors, without a GPU.

`install` puts it in the place of cuda-bindings' and tells the kernel's backend that CPU tensors are those of an H200.
What a launch was given is read back from the buffer that the real driver would have read.
"""

import contextlib
import ctypes
import struct
from collections import Counter
from typing import Any

import pytest
import torch
from cuda.bindings import driver as real

from prnn_ext import build, persistent, planning
from prnn_ext.driver import Kernel


class StandInDriver:
    """``calls`` by name; of the last launch ``given``, its arguments, and ``launched_on``; ``cleared``: address, words.

    ``stream`` is what torch's current stream shall be.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.given: tuple = ()
        self.stream = self.launched_on = 0
        self.cleared = 0, 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return getattr(real, name)

        def call(*args: object) -> tuple:
            self.calls[name] += 1
            return 0, 1

        return call

    def cuLaunchKernelEx(self, configuration: Any, function: int, parameters: int, extra: int) -> tuple:  # noqa: N802
        self.calls["cuLaunchKernelEx"] += 1
        first = ctypes.c_void_p.from_address(parameters).value
        size = struct.calcsize(persistent._LAUNCH)
        self.given = struct.unpack(persistent._LAUNCH, ctypes.string_at(first or 0, size))
        self.launched_on = int(configuration.hStream)
        return (0,)

    def cuMemsetD32Async(self, address: int, value: int, words: int, stream: int) -> tuple:  # noqa: N802
        self.calls["cuMemsetD32Async"] += 1
        self.cleared = address, words
        return (0,)


def install(patch: pytest.MonkeyPatch) -> StandInDriver:
    """Stand in for the driver, the device's facts and its status word until ``patch`` is undone."""
    stand_in = StandInDriver()
    words = (ctypes.c_int * 2)()
    patch.setattr("cuda.bindings.driver", stand_in)
    patch.setattr(torch._C, "_cuda_getDevice", lambda: 0)
    patch.setattr(torch.cuda, "device", contextlib.nullcontext)
    patch.setattr(persistent, "current_stream", lambda device: stand_in.stream)
    patch.setattr(persistent, "_gpu", lambda device: build.GPUS["sm_90a"])
    patch.setattr(persistent, "_status", lambda device: words)
    patch.setattr(planning, "unsupported_reasons", lambda *args, **arguments: [])
    kernel = Kernel(b"", "recurrence", persistent._LAUNCH, 0)
    patch.setattr(persistent, "_kernel", lambda *variant: kernel)
    forget()
    stand_in.calls.clear()
    return stand_in


def forget() -> None:
    """Prepared launches hold a driver: they go when it does."""
    persistent._half.cache_clear()
    persistent._prepared.cache_clear()
