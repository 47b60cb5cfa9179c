"""How long a layer's recurrence takes by mini-batch, out of the rows of a throughput.json.

    layer(b, T) = T * us_per_step(b) + 3 * 2 H^2 b T / (share * peak)

The second term is the input projection with its two gradients, as one GEMM each over all time steps. Where a file has
the two recurrences alone, the gradient of U is one GEMM more of that size. A width between two measured ones is
interpolated on a line; outside of them there is no answer.

Without a file of the user's it is `measured/h200.json`: what docs/KERNEL.md measured of the kernel.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.plan.facts import Fact, Kind
from experiments.scaling.step_model import Compute

OWN_MEASUREMENT = Path(__file__).with_name("measured") / "h200.json"
# H200 data sheet: dense bf16 tensor-core peak, fp32 peak.
DATASHEET_TFLOPS = {"bfloat16": 989.0, "float32": 67.0}
# A GEMM of [T B, H] x [H, H] against the largest product's speed.
GEMM_SHARE = 0.5


@dataclass(frozen=True)
class LayerTimes:
    """Microseconds a time step by mini-batch, ascending: forward alone, and both passes. `peak_tflops` of a GEMM."""

    batch_sizes: tuple[int, ...]
    forward_us: tuple[float, ...]
    both_us: tuple[float, ...]
    peak_tflops: float
    facts: tuple[Fact, ...]

    def seconds(self, hidden_size: int, frames: float, index: int) -> tuple[float, float]:
        """(forward, backward) of one layer at `batch_sizes[index]`."""
        gemm = 2 * hidden_size**2 * self.batch_sizes[index] * frames / (GEMM_SHARE * self.peak_tflops * 1e12)
        forward = self.forward_us[index] * 1e-6 * frames
        backward = (self.both_us[index] - self.forward_us[index]) * 1e-6 * frames
        return forward + gemm, backward + 2 * gemm

    def compute(
        self,
        num_layers: int,
        hidden_size: int,
        frames: float,
        overhead: Callable[[int], float] = lambda _: 1.0,
        optimizer: float = 0.0,
    ) -> Compute:
        """A whole micro-batch by mini-batch: all layers, times `overhead(mini-batch)` for everything else."""
        factors = [overhead(size) * num_layers for size in self.batch_sizes]
        parts = [self.seconds(hidden_size, frames, index) for index in range(len(self.batch_sizes))]
        return Compute(
            self.batch_sizes,
            tuple(factor * forward for factor, (forward, _) in zip(factors, parts, strict=True)),
            tuple(factor * backward for factor, (_, backward) in zip(factors, parts, strict=True)),
            optimizer,
        )


def measured(path: Path, hidden_size: int, dtype: str, backend: str) -> LayerTimes:
    """From a throughput.json. Raises ValueError where the file, width, precision or backend is missing."""
    record = read_throughput(path)
    rows = [
        row
        for row in record["rows"]
        if row["backend"] == backend and row["dtype"] == dtype and row["us_per_step"] is not None
    ]
    if not rows:
        found = sorted({f"{row['backend']} in {row['dtype']}" for row in record["rows"] if row["us_per_step"]})
        raise ValueError(f"{path} has no time of {backend} in {dtype}; it has {', '.join(found) or 'no times'}.")
    source = ", ".join(
        [path.name, record.get("device", "unknown device"), record.get("date", "no date")]
        + ([f"commit {record['commit'][:7]}"] if record.get("commit") else [])
        + ([record["command"]] if path == OWN_MEASUREMENT else [])
    )
    peak, peak_fact = _peak(record, dtype, source)
    below, above = _neighbours(sorted({row["hidden_size"] for row in rows}), hidden_size, path)
    table = {
        width: _by_batch([row for row in rows if row["hidden_size"] == width], width, peak) for width in (below, above)
    }
    sizes = sorted(set(table[below]) & set(table[above]))
    if not sizes:
        raise ValueError(f"{path} has no mini-batch with both passes timed at {below} units; measure it again.")
    weight = 0.0 if above == below else (hidden_size - below) / (above - below)
    how = "" if not weight else f", on a line between {below} and {above} units"
    times, facts = [], []
    for size in sizes:
        left, right = table[below][size], table[above][size]
        times.append(tuple((1 - weight) * left[i] + weight * right[i] for i in (0, 1)))
        predicted = "; dU not timed: a GEMM at the share below" if left[2] or right[2] else ""
        kind: Kind = "predicted" if predicted else "measured"
        name = f"recurrence ({backend}), mini-batch {size}, both passes"
        facts.append(Fact(name, times[-1][1], "µs a time step", kind, source + how + predicted))
    facts.append(Fact(f"largest mini-batch timed at {hidden_size} units", sizes[-1], "utterances", "measured", source))
    share = "share of the peak that GEMMs over all time steps reach"
    return LayerTimes(
        tuple(sizes),
        tuple(forward for forward, _ in times),
        tuple(both for _, both in times),
        peak,
        (*facts, peak_fact, Fact("GEMM efficiency", GEMM_SHARE, "of peak", "assumption", share)),
    )


def read_throughput(path: Path) -> dict[str, Any]:
    """A throughput.json. Raises ValueError where it is missing or is not one."""
    record = read_json(path)
    if not {"rows", "peak_tflops"} <= set(record):
        raise ValueError(f"{path} lacks rows or peak_tflops; give a throughput.json.")
    return record


def read_json(path: Path, needed: Sequence[str] = ()) -> dict[str, Any]:
    """A result file with these keys. Raises ValueError otherwise."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give the JSON that the experiment wrote.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); run its experiment again.") from error
    missing = [key for key in needed if not isinstance(record, dict) or key not in record]
    if missing or not isinstance(record, dict):
        raise ValueError(f"{path} lacks {', '.join(missing) or 'keys'}; it is not the file this option wants.")
    return record


def _peak(record: dict[str, Any], dtype: str, source: str) -> tuple[float, Fact]:
    """TFLOP/s of the largest product: the file's, else the data sheet's."""
    if dtype in record["peak_tflops"]:
        peak = record["peak_tflops"][dtype]
        return peak, Fact("GEMM peak", peak, "TFLOP/s", "measured", source)
    peak = DATASHEET_TFLOPS[dtype]
    return peak, Fact("GEMM peak", peak, "TFLOP/s", "assumption", f"H200 data sheet, dense {dtype}")


def _by_batch(rows: Sequence[dict[str, Any]], width: int, peak_tflops: float) -> dict[int, tuple[float, float, bool]]:
    """{mini-batch: (forward, both, whether dU was predicted)}, each at the most time steps it was timed at.

    Left out is a mini-batch without a forward, or without any backward.
    """
    found: dict[tuple[int, str], tuple[int, float]] = {}
    for row in rows:
        key = row["batch_size"], row["pass"]
        if key not in found or row["time_steps"] > found[key][0]:
            found[key] = row["time_steps"], row["us_per_step"]
    times = {}
    for size in {size for size, _ in found}:
        forward, backward, both = (found.get((size, name), (0, None))[1] for name in ("forward", "backward", "both"))
        if forward is None or (both is None and backward is None):
            continue
        gemm = 2 * width**2 * size / (GEMM_SHARE * peak_tflops * 1e6)
        times[size] = (forward, both, False) if both is not None else (forward, forward + (backward or 0) + gemm, True)
    return times


def _neighbours(widths: Sequence[int], hidden_size: int, path: Path) -> tuple[int, int]:
    below = [width for width in widths if width <= hidden_size]
    above = [width for width in widths if width >= hidden_size]
    if not below or not above:
        raise ValueError(
            f"{path} has widths {', '.join(map(str, widths))} and {hidden_size} units lie outside; measure them by "
            f"`python -m experiments throughput --hidden-sizes {hidden_size}`."
        )
    return below[-1], above[0]
