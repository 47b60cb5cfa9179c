"""CUDA source -> machine code by NVRTC, kept on disk.

The kernels are shipped as text (``prnn_ext/cuda``) and compiled for the GPU and the layer size at hand, so that an
installation needs no compiler, no ABI match and no GPU: NVRTC comes with torch's CUDA wheels.

What is compiled is kept in a folder (`prnn_ext.kernel_cache`) under the hash of everything that decides it - source and
the headers it reaches, options, architecture, NVRTC version - and of nothing else (neither torch nor driver), so that a
folder can be filled on one machine and carried to another.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache as remember
from importlib import resources
from pathlib import Path

from prnn_ext import kernel_cache

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_OWN_CACHE_SINCE = (12, 9)
"""From this version on NVRTC keeps machine code itself where there is a driver; what it finds there has no log."""
# Left out of the log, so that equal builds are equal files.
_TIMING = re.compile(r"^.*Compile time = .*\n?", re.MULTILINE)


class CompilerMissingError(RuntimeError):
    """NVRTC or cuda-bindings is missing on this machine."""


class CompilationError(RuntimeError):
    """NVRTC refused a source; the message holds its log."""


class CacheUnusable(UserWarning):
    """The cache folder cannot be written; kernels are compiled again in each process."""


@dataclass(frozen=True)
class Resources:
    """What ptxas gave one kernel: ``registers`` per thread; the rest in bytes per thread (``shared``: per block)."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int


@dataclass(frozen=True)
class Cubin:
    """A compiled source: ``image`` for the driver (cubin, or PTX where ``arch`` is ``compute_XX``) and ptxas' log."""

    image: bytes
    log: str

    @property
    def resources(self) -> dict[str, Resources]:
        """Registers and spills by kernel name, its functions included; empty for PTX, which has not met ptxas yet."""
        found = {}
        for block in re.split(r"Compiling entry function '", self.log)[1:]:
            name = block.split("'", 1)[0]
            numbers = {
                key: max((int(number) for number in re.findall(pattern, block)), default=0)
                for key, pattern in {
                    "registers": r"Used (\d+) registers",
                    "spill_stores": r"(\d+) bytes spill stores",
                    "spill_loads": r"(\d+) bytes spill loads",
                    "stack": r"(\d+) bytes stack frame",
                    "shared": r"(\d+) bytes smem",
                }.items()
            }
            found[name] = Resources(**numbers)
        return found


def compile_cubin(
    source_name: str,
    defines: Mapping[str, int | str],
    arch: str = "sm_90a",
    cache: Path | str | None = None,
    options: Sequence[str] = (),
) -> Cubin:
    """Compile ``prnn_ext/cuda/<source_name>`` with ``-D`` for each of ``defines``, or fetch it from the cache.

    ``arch`` is a real architecture (``sm_80``, ``sm_90a``, ...: machine code) or a virtual one (``compute_80``: PTX).
    ``cache`` is a folder, None for `kernel_cache.default_cache`. Headers of the same folder are found by name. Raises
    `CompilerMissingError` without NVRTC and `CompilationError` with NVRTC's log.
    """
    return compile_text(source_name, _sources(source_name), defines, arch, cache, options)


def compile_text(
    source_name: str,
    texts: Mapping[str, str],
    defines: Mapping[str, int | str],
    arch: str = "sm_90a",
    cache: Path | str | None = None,
    options: Sequence[str] = (),
) -> Cubin:
    """`compile_cubin` for sources in memory: ``texts`` maps ``source_name`` and its headers to their text."""
    flags = [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        *([] if arch.startswith("compute_") else ["--ptxas-options=-v"]),
        *(["--no-cache"] if nvrtc_version() >= _OWN_CACHE_SINCE else []),
        *options,
        *(f"--define-macro={name}={value}" for name, value in sorted(defines.items())),
    ]
    key_parts = [source_name, sorted(texts.items()), flags, arch, nvrtc_version()]
    key = hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:40]
    folder = Path(cache) if cache is not None else kernel_cache.default_cache()
    path = folder / f"{Path(source_name).stem}-{arch}-{key}.bin"
    if found := kernel_cache.read(path):
        return Cubin(*found)
    built = None
    try:
        with kernel_cache.locked(path):
            # Another process may have built it while this one waited for the lock.
            if found := kernel_cache.read(path):
                return Cubin(*found)
            built = _compile(source_name, texts, flags, arch)
            kernel_cache.write(path, built.image, built.log)
    except OSError as error:
        warnings.warn(
            f"The kernel cache {folder} cannot be written ({error.strerror or error}), so kernels are compiled again "
            "in each process; name a writable folder in PRNN_EXT_CACHE.",
            CacheUnusable,
            stacklevel=2,
        )
    return built or _compile(source_name, texts, flags, arch)


@remember
def nvrtc_version() -> tuple[int, int]:
    """NVRTC's (major, minor); raises `CompilerMissingError` where NVRTC or cuda-bindings cannot be loaded."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise CompilerMissingError(
            f"NVRTC cannot be loaded ({error}), so no kernel can be compiled; install a CUDA build of torch (it brings "
            "NVRTC and cuda-bindings) or use backend='reference'."
        ) from error
    return major, minor


def _sources(source_name: str) -> dict[str, str]:
    """The source and every header it reaches by ``#include "..."``."""
    folder = resources.files("prnn_ext") / "cuda"
    texts: dict[str, str] = {}
    waiting = [source_name]
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = (folder / name).read_text(encoding="utf-8")
            waiting += _INCLUDE.findall(texts[name])
    return texts


def _compile(source_name: str, texts: Mapping[str, str], flags: Sequence[str], arch: str) -> Cubin:
    from cuda.bindings import nvrtc

    def check(result: tuple) -> object:
        status, *values = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilationError(f"NVRTC failed on {source_name} for {arch} with {status.name}.")
        return values[0] if values else None

    headers = {name: text for name, text in texts.items() if name != source_name}
    program = check(
        nvrtc.nvrtcCreateProgram(
            texts[source_name].encode(),
            source_name.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))  # type: ignore[call-overload]
        check(nvrtc.nvrtcGetProgramLog(program, log))
        text = _TIMING.sub("", log.rstrip(b"\0").decode(errors="replace"))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilationError(f"NVRTC refused {source_name} for {arch} ({status.name}):\n{text}")
        size, get = (
            (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
            if arch.startswith("compute_")
            else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        )
        image = bytearray(check(size(program)))  # type: ignore[call-overload]
        check(get(program, image))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(bytes(image), text)
