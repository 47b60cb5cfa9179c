"""Machine code -> a loaded kernel -> a launch on a torch stream, through the CUDA driver API.

torch's own launcher can do neither cooperative nor cluster launches, which a persistent grid needs: cooperative is the
driver's promise that all blocks are resident together, without which a grid barrier may wait for ever.

A kernel is loaded once per device, in torch's primary context. A deep network launches hundreds of kernels a step and
host time shows, so what launches have in common is made once (`Kernel.prepare`), arguments are packed by one ``struct``
call into a buffer whose addresses the driver was given beforehand, and a launch makes no Python object of a stream.
Launches can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from functools import cache as remember
from typing import Any

import torch

_DEFAULT_SHARED_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8
_thread = threading.local()


def load_kernel(image: bytes, name: str, signature: str, device: int) -> Kernel:
    """The kernel ``name`` (an ``extern "C"`` function) of ``image`` on CUDA device ``device``, loaded once a process.

    ``signature`` gives the C types of its parameters as a ``struct`` format: ``P`` pointer, ``i``/``I`` 32-bit integer,
    ``q``/``Q`` 64-bit integer, ``f`` float (``"PPPiif"``).
    """
    return _load(image, name, signature, device)


class Arguments:
    """A kernel's parameters in one buffer, and at ``address`` the array of pointers to each that the driver reads."""

    def __init__(self, signature: str):
        layout = struct.Struct("@" + signature)
        self._buffer = ctypes.create_string_buffer(max(layout.size, 1))
        start = ctypes.addressof(self._buffer)
        # "@" pads as C does: parameter i ends where the layout of parameters 0..i ends.
        ends = [struct.calcsize("@" + signature[: i + 1]) for i in range(len(signature))]
        starts = [start + end - struct.calcsize(code) for end, code in zip(ends, signature, strict=True)]
        self._pointers = (ctypes.c_void_p * max(len(starts), 1))(*starts)
        self.address = ctypes.addressof(self._pointers)
        self._pack = layout.pack_into

    def pack(self, *values: float) -> None:
        """Overwrite the parameters."""
        self._pack(self._buffer, 0, *values)


class PreparedLaunch:
    """Launches of one kernel in one shape; see `Kernel.prepare`."""

    def __init__(self, kernel: Kernel, configuration: Any, shape: str):
        self._kernel, self._configuration, self._shape = kernel, configuration, shape
        self._stream: int | None = None
        self._launch, self._clear = kernel._driver.cuLaunchKernelEx, kernel._driver.cuMemsetD32Async

    def __call__(self, stream: int, args: tuple, cleared: tuple[int, int] | None = None) -> None:
        """Launch on ``stream`` (see `current_stream`) without waiting.

        ``args`` fit the kernel's signature, tensors as ``data_ptr()``; ``cleared`` is an address and a number of 32-bit
        words which the stream zeroes before. Raises ``RuntimeError`` with the driver's reason.
        """
        kernel = self._kernel
        if torch._C._cuda_getDevice() != kernel.device:
            with torch.cuda.device(kernel.device):
                self(stream, args, cleared)
            return
        if not _thread_is_bound():
            _bind_context(kernel.device)
        if cleared is not None and (result := self._clear(cleared[0], 0, cleared[1], stream))[0] != 0:
            _check(result, f"clearing {4 * cleared[1]} bytes for {kernel.name}")
        # The driver copies the arguments before it returns; the lock keeps another thread from packing until then.
        with kernel._lock:
            if stream != self._stream:
                self._configuration.hStream = self._stream = stream
            kernel._arguments.pack(*args)
            result = self._launch(self._configuration, kernel._function, kernel._arguments.address, 0)
        if result[0] != 0:
            _check(result, f"launching {kernel.name} with {self._shape}")


class Kernel:
    """A kernel loaded on one device; see `load_kernel`."""

    def __init__(self, image: bytes, name: str, signature: str, device: int):
        from cuda.bindings import driver

        self._driver = driver
        self.name, self.device = name, device
        with torch.cuda.device(device):
            _bind_context(device)
            # The module is never unloaded: it lives as long as the process, like the kernel kept by `load_kernel`.
            self._module = _check(driver.cuModuleLoadData(image), f"loading the machine code of {name}")
            self._function = _check(driver.cuModuleGetFunction(self._module, name.encode()), f"finding {name}")
        self._arguments = Arguments(signature)
        self._prepared: dict[tuple, PreparedLaunch] = {}
        self._allowed_shared_bytes = _DEFAULT_SHARED_BYTES
        self._lock = threading.Lock()

    def prepare(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        cooperative: bool = True,
        cluster: tuple[int, int, int] | None = None,
    ) -> PreparedLaunch:
        """Launches of this shape, made once: ``grid`` counts blocks (not clusters), ``shared_bytes`` is dynamic."""
        key = (grid, block, shared_bytes, cooperative, cluster)
        if (prepared := self._prepared.get(key)) is None:
            with torch.cuda.device(self.device):
                _bind_context(self.device)
                configuration = self._configure(key)
            shape = f"{grid} blocks of {block} threads and {shared_bytes} bytes"
            prepared = self._prepared[key] = PreparedLaunch(self, configuration, shape)
        return prepared

    def _configure(self, key: tuple) -> Any:
        grid, block, shared_bytes, cooperative, cluster = key
        driver = self._driver
        self._allow_shared(shared_bytes)
        configuration = driver.CUlaunchConfig()
        configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = grid
        configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = block
        configuration.sharedMemBytes = shared_bytes
        attributes = []
        if cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if cluster is not None:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
            attributes.append(attribute)
            if cluster[0] * cluster[1] * cluster[2] > _PORTABLE_CLUSTER:
                self._set_attribute("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
        configuration.attrs = attributes
        configuration.numAttrs = len(attributes)
        return configuration

    def _allow_shared(self, shared_bytes: int) -> None:
        # Never lowered again: configurations kept for larger launches rely on it.
        if shared_bytes > self._allowed_shared_bytes:
            self._set_attribute("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
            self._allowed_shared_bytes = shared_bytes

    def _set_attribute(self, attribute: str, value: int) -> None:
        code = getattr(self._driver.CUfunction_attribute, attribute)
        _check(self._driver.cuFuncSetAttribute(self._function, code, value), f"setting {attribute} = {value}")


@remember
def _load(image: bytes, name: str, signature: str, device: int) -> Kernel:
    return Kernel(image, name, signature, device)


def current_stream(device: int) -> int:
    """The handle of torch's current stream on ``device``, without the object that `torch.cuda.current_stream` makes."""
    return torch._C._cuda_getCurrentRawStream(device)


def _thread_is_bound() -> bool:
    return getattr(_thread, "bound", False)


def _bind_context(device: int) -> None:
    """Make torch's primary context current in this thread.

    A thread that has not yet called the CUDA runtime (autograd's, for device 0) has none, and the driver needs one.
    """
    if _thread_is_bound():
        return
    from cuda.bindings import driver

    context = _check(driver.cuCtxGetCurrent(), "asking for the current context")
    if int(context) == 0:
        primary = _check(driver.cuDevicePrimaryCtxRetain(device), "retaining the primary context")
        _check(driver.cuCtxSetCurrent(primary), "entering the primary context")
    _thread.bound = True


def _check(result: tuple, doing: str) -> Any:
    """The value in a driver call's result; ``RuntimeError`` with the driver's own words where it failed."""
    status, *values = result
    if int(status) != 0:
        from cuda.bindings import driver

        _, words = driver.cuGetErrorString(status)
        raise RuntimeError(f"The CUDA driver failed while {doing}: {status.name} ({(words or b'').decode()}).")
    return values[0] if values else None
