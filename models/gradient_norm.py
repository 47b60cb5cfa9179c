"""The gradient's norm: rescaled to a highest, and a whole optimiser step dropped where it is not finite.

The norm is taken after the ranks' gradients were averaged, so every rank sees the same number and decides alike; a
non-finite micro-batch drops its whole accumulation window. A dropped step moves neither parameters nor the optimiser's
own state.

`apply` decides on the host, which waits for the device once a step. `leave_to` hands norm and decision to a fused
optimiser on CUDA, which divides by one and obeys the other while it steps (`grad_scale`, `found_inf`, made for mixed
precision); the host reads the decision a step later, when it has long been made, and waits for nothing. Then only the
count of dropped steps, and the end of a training that drops too many, come one step late.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class NonFiniteGradientsError(ArithmeticError):
    """Too many steps in a row had a gradient that was not finite: the run has diverged."""


class GradientNorm:
    """Rescales gradients to a norm of at most `highest` and drops steps; gives up after `max_nonfinite_steps` in a
    row."""

    def __init__(self, highest: float, max_nonfinite_steps: int) -> None:
        self.highest = highest
        self.max_nonfinite_steps = max_nonfinite_steps
        self.norm = math.nan
        self._dropped = 0
        self._dropped_in_a_row = 0
        self._unread: _Reading | None = None

    @property
    def dropped(self) -> int:
        """Steps dropped so far."""
        self._read()
        return self._dropped

    @property
    def dropped_in_a_row(self) -> int:
        """Steps dropped since the last that stood."""
        self._read()
        return self._dropped_in_a_row

    def state(self) -> dict[str, int]:
        """What a run that is gone on with must know: plain numbers."""
        return {"dropped": self.dropped, "dropped_in_a_row": self.dropped_in_a_row}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on counting from there."""
        self._unread = None
        self._dropped, self._dropped_in_a_row = state["dropped"], state["dropped_in_a_row"]

    def apply(self, parameters: Iterable[Tensor]) -> bool:
        """Rescale or drop in place; True when the step stands. Raises NonFiniteGradientsError after too many in a
        row."""
        self._read()
        parameters = [p for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self._count(norm.item()):
            if self.norm > self.highest:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.highest, norm)
            return True
        for p in parameters:
            p.grad = None
        self._give_up()
        return False

    def leave_to(self, optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> None:
        """The same, done by `optimizer.step()`, which must be fused. Raises NonFiniteGradientsError when the step
        before was one too many."""
        self._read()
        self._give_up()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).float()
        taker: Any = optimizer
        taker.grad_scale = (norm / self.highest).clamp(min=1.0)
        taker.found_inf = torch.isfinite(norm).logical_not().float()
        self._unread = _Reading(norm)

    def _read(self) -> None:
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._count(unread.value())

    def _count(self, norm: float) -> bool:
        self.norm = norm
        stands = math.isfinite(norm)
        self._dropped += not stands
        self._dropped_in_a_row = 0 if stands else self._dropped_in_a_row + 1
        return stands

    def _give_up(self) -> None:
        if self._dropped_in_a_row >= self.max_nonfinite_steps:
            raise NonFiniteGradientsError(
                f"{self._dropped_in_a_row} optimiser steps in a row had a gradient that was not finite; lower "
                "learning_rate or clip_norm, use activation clipped_relu, or allow more with max_nonfinite_steps."
            )


def steps_on_the_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `leave_to` may be used: fused AdamW with all its parameters on one CUDA device."""
    if not isinstance(optimizer, torch.optim.AdamW):
        return False
    devices = {p.device for group in optimizer.param_groups for p in group["params"]}
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return fused and len(devices) == 1 and next(iter(devices)).type == "cuda"


class _Reading:
    """A number on its way to the host."""

    def __init__(self, value: Tensor) -> None:
        self._host = torch.empty((), dtype=value.dtype, pin_memory=value.is_cuda)
        self._host.copy_(value, non_blocking=True)
        self._arrived = torch.cuda.Event() if value.is_cuda else None
        if self._arrived is not None:
            self._arrived.record()

    def value(self) -> float:
        """Once it has arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.item()
