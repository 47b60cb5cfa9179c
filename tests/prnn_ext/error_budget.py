"""The error budget: a backend's error against float64 truth, measured in that of plain PyTorch in the same precision.

    |backend - truth|_max  <=  2 |plain - truth|_max + 1 ulp of the largest true value

for the output, h_n and every gradient, on U of spectral radius below 1. Truth sees the very numbers the backend sees
(inputs rounded to the dtype first). Gradients are judged given the backend's own output: whether a unit that truth has
at 1e-9 is on or off is decided by rounding, and a flipped unit changes its gradient by all of itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import prnn_ext
from prnn_ext import gradients, reference

FACTOR = 2.0


@dataclass(frozen=True)
class Case:
    """Arguments of `prnn_ext.rnn` and gradients of its two results; see there for shapes."""

    x: Tensor
    weight_hh: Tensor
    h_0: Tensor | None
    lengths: Tensor | None
    scale: Tensor | None
    shift: Tensor | None
    grad_output: Tensor
    grad_h_n: Tensor
    activation: str = "clipped_relu"
    reverse: bool = False

    def to(self, dtype: torch.dtype) -> Case:
        """Everything but the lengths in ``dtype``; scale and shift in float32 or better, as the op uses them."""
        folded = torch.promote_types(dtype, torch.float32)
        return replace(
            self,
            **{n: None if (v := getattr(self, n)) is None else v.to(dtype) for n in ("x", "weight_hh", "h_0")},
            **{n: None if (v := getattr(self, n)) is None else v.to(folded) for n in ("scale", "shift")},
            **{n: getattr(self, n).to(dtype) for n in ("grad_output", "grad_h_n")},
        )


def make_case(
    T: int,
    B: int,
    H: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    activation: str = "clipped_relu",
    reverse: bool = False,
    ragged: bool = True,
    state: bool = True,
    folded: bool = True,
    seed: int = 0,
) -> Case:
    """A random case: U of spectral radius about 0.8, inputs of size 1, lengths that include 0 and T where B allows."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = None
    if ragged:
        lengths = torch.randint(0, T + 1, (B,), generator=generator)
        lengths[-1:] = 0
        lengths[:1] = T
        lengths = lengths.to(device, torch.int32)
    values = {
        "x": random(T, B, H),
        "weight_hh": 0.8 * random(H, H) / math.sqrt(max(H, 1)),
        "h_0": random(B, H) if state else None,
        "scale": random(H) if folded else None,
        "shift": random(H) if folded else None,
        "grad_output": random(T, B, H),
        "grad_h_n": random(B, H),
    }
    moved = {name: None if value is None else value.to(device) for name, value in values.items()}
    return Case(lengths=lengths, activation=activation, reverse=reverse, **moved).to(dtype)


def run(case: Case, backend: str) -> dict[str, Tensor]:
    """The op's results and gradients by name."""
    given = {n: v for n in ("x", "weight_hh", "h_0", "scale", "shift") if (v := getattr(case, n)) is not None}
    leaves = {name: value.detach().clone().requires_grad_() for name, value in given.items()}
    output, h_n = prnn_ext.rnn(
        lengths=case.lengths, activation=case.activation, reverse=case.reverse, backend=backend, **leaves
    )
    found = torch.autograd.grad((output, h_n), list(leaves.values()), (case.grad_output, case.grad_h_n))
    named = {f"grad_{name}": value for name, value in zip(leaves, found, strict=True)}
    return {"output": output.detach(), "h_n": h_n.detach(), **named}


def expect(case: Case, output: Tensor) -> dict[str, Tensor]:
    """What plain PyTorch gives in the case's dtype; gradients given the forward result ``output``."""
    arguments = {"scale": case.scale, "shift": case.shift, "activation": case.activation, "reverse": case.reverse}
    if case.x.dtype in (torch.bfloat16, torch.float16):
        # Half-precision PyTorch multiplies and adds in half precision.
        arguments |= {n: None if (v := getattr(case, n)) is None else v.to(case.x.dtype) for n in ("scale", "shift")}
    plain, h_n = reference.equations(case.x, case.weight_hh, case.h_0, case.lengths, **arguments)
    output = output.to(case.x.dtype)
    delta, grad_h_0 = reference.backward(
        case.grad_output,
        case.grad_h_n,
        output,
        case.weight_hh,
        case.h_0,
        case.lengths,
        case.activation,
        case.reverse,
    )
    expected = {
        "output": plain,
        "h_n": h_n,
        "grad_x": gradients.input_gradient(delta, case.scale),
        "grad_weight_hh": gradients.weight_gradient(delta, output, case.h_0, case.lengths, case.reverse),
    }
    if case.h_0 is not None:
        expected["grad_h_0"] = grad_h_0
    if case.scale is not None:
        expected["grad_scale"] = gradients.scale_gradient(delta, case.x, case.lengths)
        expected["grad_shift"] = gradients.shift_gradient(delta)
    return expected


def assert_within_budget(case: Case, backend: str) -> dict[str, float]:
    """Run ``backend`` and hold every result to the budget; returns each result's share of it (1 is the limit)."""
    actual = run(case, backend)
    plain = expect(case, actual["output"])
    truth = expect(case.to(torch.float64), actual["output"])
    assert actual.keys() == truth.keys()
    shares = {}
    for name, value in actual.items():
        assert torch.isfinite(value).all(), f"{name} is not finite"
        if value.numel() == 0:
            continue
        error, allowed = (
            _error(value, truth[name]),
            FACTOR * _error(plain[name], truth[name]) + _ulp(truth[name].abs().max().item(), case.x.dtype),
        )
        shares[name] = error / allowed
        assert error <= allowed, f"{name} of {backend}: error {error:.3e} exceeds its budget {allowed:.3e}"
    return shares


def _error(value: Tensor, truth: Tensor) -> float:
    return (value.double() - truth).abs().max().item()


def _ulp(scale: float, dtype: torch.dtype) -> float:
    """The spacing of ``dtype`` at ``scale``."""
    limits = torch.finfo(dtype)
    return limits.eps * 2.0 ** math.floor(math.log2(max(scale, limits.tiny)))
