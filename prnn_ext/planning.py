"""Which backend runs a recurrence, and why not the others: limits as sentences.

``auto`` takes the persistent kernel where it can run and the reference elsewhere, and says which; a backend asked for
by name either runs or raises with every reason. Nothing is switched silently.

The persistent backend is imported only for CUDA tensors, so that a CPU user never loads cuda-bindings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

BACKENDS = ("auto", "persistent", "cudnn", "reference")


class BackendUnavailableError(ValueError):
    """The backend asked for cannot run this call; the message holds every reason."""


@dataclass(frozen=True)
class Plan:
    """The backend that runs; its ``tiles`` (None but for the persistent kernel); why each other backend does not."""

    backend: str
    tiles: Any = None
    reasons: dict[str, list[str]] = field(default_factory=dict)


def plan(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str = "clipped_relu",
    reverse: bool = False,
    backend: str = "auto",
) -> Plan:
    """What `prnn_ext.rnn` would do with these arguments. Values are not read: meta tensors will do for the reference.

    ``reasons`` maps each backend that cannot run, or was not chosen, to sentences. Raises `BackendUnavailableError`
    where a backend asked for by name cannot run.
    """
    arguments: dict[str, Any] = {"scale": scale, "shift": shift, "activation": activation, "reverse": reverse}
    chosen = choose(x, weight_hh, h_0, lengths, backend=backend, **arguments)
    reasons = {
        name: unsupported_reasons(x, weight_hh, h_0, lengths, backend=name, **arguments)
        or [f"It could run, but {chosen} {'was asked for' if backend == chosen else 'comes first'}."]
        for name in BACKENDS[1:]
        if name != chosen
    }
    tiles = None
    if chosen == "persistent":
        from prnn_ext import persistent

        tiles = persistent.choose_tiles(x, weight_hh)
    return Plan(chosen, tiles, reasons)


def choose(x: Tensor, weight_hh: Tensor, *args: Any, backend: str = "auto", **arguments: Any) -> str:
    """The name of the backend that `plan` names, for the same arguments and errors, without explaining the others."""
    _check_name(backend)
    asked = "persistent" if backend == "auto" else backend
    reasons = unsupported_reasons(x, weight_hh, *args, backend=asked, **arguments)
    if not reasons:
        return asked
    if backend == "auto":
        return "reference"
    raise BackendUnavailableError(f"backend={backend!r} cannot run: {' '.join(reasons)}")


def unsupported_reasons(
    x: Tensor,
    weight_hh: Tensor,
    h_0: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str = "clipped_relu",
    reverse: bool = False,
    backend: str = "persistent",
) -> list[str]:
    """Why ``backend`` cannot run these arguments, a sentence each; empty where it can."""
    _check_name(backend)
    if backend == "persistent":
        if x.device.type != "cuda":
            return [f"The persistent kernel runs on CUDA tensors and x is on {x.device}; move the arguments to a GPU."]
        from prnn_ext import persistent

        return persistent.unsupported_reasons(x, weight_hh, h_0, lengths, activation=activation, reverse=reverse)
    if backend != "cudnn":
        return []
    reasons = []
    if x.device.type != "cuda":
        reasons.append(f"cuDNN runs on CUDA tensors and x is on {x.device}; move the arguments to a GPU.")
    if activation == "clipped_relu":
        reasons.append("cuDNN has no clipped ReLU; use activation='relu' or 'tanh', or another backend.")
    if lengths is not None:
        reasons.append("cuDNN takes no lengths here, since it would read them on the host; use another backend.")
    if x.shape[1] == 0 or x.shape[0] == 0 or x.shape[2] == 0:
        reasons.append(f"cuDNN takes no empty batch and x is {list(x.shape)}; use another backend.")
    return reasons


def check() -> None:
    """Raise a pending error of the persistent kernel (a wait beyond its limit, a length out of range), if any.

    Waits for the device. A process that never ran the kernel returns at once.
    """
    import sys

    if persistent := sys.modules.get("prnn_ext.persistent"):
        persistent.check()


def _check_name(backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}.")
