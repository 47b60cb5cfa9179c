"""What may be given to `prnn_ext.rnn`: one sentence for each thing that may not."""

from __future__ import annotations

import torch
from torch import Tensor

from prnn_ext import reference


def check_tensors(**given: object) -> None:
    """Raise ``ValueError`` for a list, an array or a number where a tensor belongs; x and weight_hh may not be None."""
    for name, value in given.items():
        if not isinstance(value, Tensor) and (value is not None or name in ("x", "weight_hh")):
            raise ValueError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor: convert it.")


def check_arguments(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None,
    lengths: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    activation: str,
) -> None:
    """Raise ``ValueError`` for shapes, dtypes, devices and names that do not fit; values are never read."""
    if x.dim() != 3:
        raise ValueError(f"x has shape {list(x.shape)}; it must be [T, B, H]: give time, mini-batch and hidden axes.")
    if not x.is_floating_point():
        raise ValueError(f"x is {x.dtype}; it must be a floating dtype: convert it.")
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; choose one of {', '.join(reference.ACTIVATIONS)}.")
    _, B, H = x.shape
    device, dtype = x.device, x.dtype
    for name, tensor, expected in (
        ("weight_hh", weight_hh, (H, H)),
        ("h_0", h_0, (B, H)),
        ("lengths", lengths, (B,)),
        ("scale", scale, (H,)),
        ("shift", shift, (H,)),
    ):
        if tensor is None:
            continue
        if tensor.shape != expected:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}; with x {list(x.shape)} it must be {list(expected)}."
            )
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device} and x on {device}; move them to one device.")
        if name in ("weight_hh", "h_0") and tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} and x {dtype}; convert them to one dtype.")
        if name == "lengths":
            if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
                raise ValueError(f"lengths is {tensor.dtype}; it must hold integers, in frames.")
        elif not tensor.is_floating_point():
            raise ValueError(f"{name} is {tensor.dtype}; it must be a floating dtype: convert it.")
