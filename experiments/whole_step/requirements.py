"""What the deep stack must reach, beside what a run measured: one line a requirement.

One GPU, one run: 1152 units, 350 time steps, bf16-true. A requirement whose network was not run is `not measured`,
which is neither met nor missed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEEP_STEPS = 100
"""Over which the loss of a thousand layers has to fall."""


@dataclass(frozen=True)
class Requirement:
    """A figure and its limits; `aimed` is what is hoped for, `met` None where nothing was measured."""

    name: str
    required: str
    aimed: str
    measured: str
    met: bool | None


def requirements(rows: Sequence[Mapping[str, Any]], deep: Sequence[Mapping[str, Any]]) -> list[Requirement]:
    """`rows` as in whole_step.json, `deep` its trainings of a thousand layers."""

    def of(batch: int, policy: str, key: str) -> float | None:
        wanted = {"num_layers": 88, "hidden_size": 1152, "batch_size": batch, "policy": policy, "frames": 350}
        wanted |= {"precision": "bf16-true"}
        found = [row[key] for row in rows if all(row[name] == value for name, value in wanted.items())]
        return found[0] if found else None

    lines = [
        _least("88 layers, mini-batch 4: forward + backward, times cuDNN's", of(4, "save", "stack_speedup"), 10, 15),
        _least("the same, less torch.nn.RNN's own matrix", of(4, "save", "stack_speedup_less_matrix"), 10, 15),
        _most("the same, ms", of(4, "save", "stack_ms"), 117, 78, "ms"),
        _least("88 layers, mini-batch 4: whole step, times cuDNN's", of(4, "save", "step_speedup"), 10, 15),
        _least("88 layers, mini-batch 64: forward + backward, times cuDNN's", of(64, "save", "stack_speedup"), 5),
        _least("88 layers, mini-batch 64: whole step, times cuDNN's", of(64, "save", "step_speedup"), 5),
        *(
            _most(
                f"88 layers, mini-batch {batch}: activation memory, {policy}",
                of(batch, policy, "activation_ratio"),
                limit,
            )
            for batch in (4, 64)
            for policy, limit in (("save", 0.45), ("recompute", 0.15))
        ),
        _most("88 layers, mini-batch 4: time over roofline's parts", of(4, "save", "over_roofline"), 1.5),
        *(
            _most(
                f"88 layers, mini-batch {batch}: host over step",
                _over(of(batch, "save", "stack_host_ms"), of(batch, "save", "stack_ms")),
                1.0,
            )
            for batch in (4, 64)
        ),
    ]
    for policy in ("save", "recompute"):
        found = next((one for one in deep if (one["num_layers"], one["policy"]) == (1000, policy)), None)
        full = found is not None and found["hidden_size"] == 1152 and found["batch_size"] == 4
        steps = len(found["losses"]) if found else 0
        lines.append(
            Requirement(
                f"1,000 layers x 1152, mini-batch 4, {policy}: trains",
                f"loss falls over {DEEP_STEPS} steps" if policy == "save" else "takes a step",
                "",
                f"{found['losses'][0]:.4g} -> {found['losses'][-1]:.4g} in {steps} steps of {found['step_ms']:.0f} ms"
                if found and full
                else "not measured",
                None if not full or found is None else _trained(found, DEEP_STEPS if policy == "save" else 1),
            )
        )
    return lines


def _trained(found: Mapping[str, Any], steps: int) -> bool:
    return found["dropped_steps"] == 0 and len(found["losses"]) >= steps and (steps == 1 or bool(found["falls"]))


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _least(name: str, value: float | None, required: float, aimed: float | None = None) -> Requirement:
    return _line(name, "at least", value, required, aimed, "×", lambda found: found >= required)


def _most(name: str, value: float | None, required: float, aimed: float | None = None, unit: str = "×") -> Requirement:
    return _line(name, "at most", value, required, aimed, unit, lambda found: found <= required)


def _line(
    name: str,
    words: str,
    value: float | None,
    required: float,
    aimed: float | None,
    unit: str,
    meets: Callable[[float], bool],
) -> Requirement:
    return Requirement(
        name,
        f"{words} {required:g} {unit}",
        "" if aimed is None else f"{aimed:g} {unit}",
        "not measured" if value is None else f"{value:.3g} {unit}",
        None if value is None else meets(value),
    )
