"""`--device`: the device it names, or a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_of(name: str | None) -> torch.device:
    """cpu, cuda or one of several as cuda:1; cuda where there is one for None.

    Raises ValueError for another kind of device, and for one that torch does not find.
    """
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None:
        return torch.device("cuda" if there else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:  # it lists every device that torch can be built for
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {name} is no device of these commands; say cpu, cuda or, of several, cuda:1")
    if device.type == "cuda" and (device.index or 0) >= there:
        found = f"torch finds {there} of them" if there else "torch finds no CUDA device"
        raise ValueError(f"--device {name} is not there ({found}); say --device cpu{' or another' if there else ''}")
    return device
