"""What a run has to itself: a GPU or several, or some of the cores, a port; and a life that ends with its parent's."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Slot:
    """A share of the machine: environment variables that keep a run inside it."""

    environment: dict[str, str]


def machine_slots(
    jobs: int | None = None, accelerator: str = "auto", runs: int | None = None, gpus: int = 1
) -> list[Slot]:
    """A slot for each `gpus` GPUs where there are GPUs (and `accelerator` is not "cpu"), else `jobs` of equal threads.

    `jobs` None means: as many as there are devices for. On CPU that is one run a core, one thread each, which trains
    small networks faster than fewer runs with more threads; where there are fewer `runs` than cores, they share them
    all. Raises ValueError for no runs at a time, and for more GPUs a run than there are.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs is {jobs}; give a positive number of runs at a time, or auto.")
    devices = [] if accelerator == "cpu" else _visible_gpus()
    if gpus < 1 or (gpus > 1 and gpus > len(devices)):
        raise ValueError(f"--gpus is {gpus} and {len(devices)} GPUs can be used here; give a number from 1 to that.")
    if devices:
        shares = [",".join(devices[i : i + gpus]) for i in range(0, len(devices) - gpus + 1, gpus)]
        return [Slot({"CUDA_VISIBLE_DEVICES": shares[i % len(shares)]}) for i in range(jobs or len(shares))]
    cores = usable_cores()
    count = jobs or min(cores, runs or cores)
    threads = str(max(1, cores // count))
    return [Slot(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)) for _ in range(count)]


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def runs_at_a_time(text: str) -> int | None:
    """What `--jobs` was given: `auto` as None, else a number. Raises argparse's error, which names the option."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a whole number") from None


def _visible_gpus() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device.strip()][: torch.cuda.device_count()]
    return [str(index) for index in range(torch.cuda.device_count())]


def free_port(taken: set[int]) -> int:
    """A port of this machine that nobody listens on, and none of `taken`."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


def die_with_parent(parent: int) -> Callable[[], None] | None:
    """What a child does between fork and exec so that the kernel kills it when the runner dies. Linux only."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask
