"""From measured parts to any number of devices: fit, error on what was measured, and the extension.

`measured` is what `ranks.py` wrote, one dictionary a number of devices. The model (`step_model.py`,
`communication.py`) has these parts: compute by per-device batch (measured), buckets and when they are ready (measured),
all-reduce by message size (fitted inside a node, a preset between nodes), contention and overhead (fitted to steps).

The error is stated twice: over the steps the overlap was fitted to, and for steps left out. A left-out step's batch
size is removed from the compute table and from the fit, so its prediction knows neither its compute nor its time.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments.scaling.communication import Message, all_reduce_seconds, fit
from experiments.scaling.interconnects import Interconnect
from experiments.scaling.step_model import Bucket, Compute, Overlap, StepTime, buckets_of, fit_overlap, step_time

Measured = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A fitted model. `net` is what joins the measured devices."""

    compute: Compute
    buckets: tuple[Bucket, ...]
    net: Interconnect
    overlap: Overlap

    def step(self, devices: int, batch_size: float, accumulation: int = 1, net: Interconnect | None = None) -> StepTime:
        """A step on so many devices; over another interconnect where `net` is given."""
        joined = net or self.net
        return step_time(
            self.compute,
            batch_size,
            self.buckets,
            lambda size: all_reduce_seconds(size, devices, joined),
            overlap=self.overlap,
            accumulation=accumulation,
        )


@dataclass(frozen=True)
class Prediction:
    """A measured step beside the model's: seconds, and the error as a fraction of the measured time."""

    devices: int
    batch_size: int
    measured: float
    predicted: float
    held_out: bool

    @property
    def error(self) -> float:
        """Signed: positive where the model is too slow."""
        return self.predicted / self.measured - 1


def compute_of(measured: Measured) -> Compute:
    """The measured table of compute."""
    rows = sorted(measured["compute"], key=lambda row: row["batch_size"])
    return Compute(
        batch_sizes=tuple(row["batch_size"] for row in rows),
        forward=tuple(row["forward"] for row in rows),
        backward=tuple(row["backward"] for row in rows),
        optimizer=sum(row["optimizer"] for row in rows) / len(rows),
    )


def fit_model(measured: Measured, net: Interconnect, without: int | None = None) -> Model:
    """The model of one measurement; `without` is a batch size it must not know.

    `net` gives what was not measured. On one device nothing about communication is fitted and the overlap is ideal.
    Raises ValueError where too little was measured.
    """
    compute = compute_of(measured)
    if without is not None:
        compute = compute.without(without)
    if not compute.batch_sizes:
        raise ValueError("No batch size is left to fit the model to; measure at least two.")
    buckets = tuple(buckets_of([(row["bytes"], row["ready"]) for row in measured["gradients"]]))
    devices = measured["world_size"]
    if devices == 1:
        return Model(compute, buckets, net, Overlap())
    joined = fit(messages_of(measured), net)
    ideal = Model(compute, buckets, joined, Overlap())
    pairs = [
        (row["seconds"], ideal.step(devices, row["batch_size"]))
        for row in measured["step"]
        if row["batch_size"] != without
    ]
    return Model(compute, buckets, joined, fit_overlap(pairs))


def messages_of(measured: Measured) -> list[Message]:
    """The measured all-reduces."""
    return [Message(row["bytes"], measured["world_size"], row["seconds"]) for row in measured["all_reduce"]]


def fitted_steps(measured: Measured, model: Model) -> list[Prediction]:
    """Every measured step beside the model that was fitted to all of them."""
    devices = measured["world_size"]
    return [
        Prediction(devices, row["batch_size"], row["seconds"], model.step(devices, row["batch_size"]).total, False)
        for row in measured["step"]
    ]


def held_out_steps(measured: Measured, net: Interconnect, batch_sizes: Sequence[int] | None = None) -> list[Prediction]:
    """Each of `batch_sizes` (all but the smallest and largest where None) predicted by a model that never saw it."""
    devices = measured["world_size"]
    rows = sorted(measured["step"], key=lambda row: row["batch_size"])
    chosen = [row["batch_size"] for row in rows[1:-1]] if batch_sizes is None else list(batch_sizes)
    predictions = []
    for row in rows:
        if row["batch_size"] in chosen:
            model = fit_model(measured, net, without=row["batch_size"])
            step = model.step(devices, row["batch_size"])
            predictions.append(Prediction(devices, row["batch_size"], row["seconds"], step.total, True))
    return predictions


def held_out_devices(measured: Sequence[Measured], net: Interconnect) -> list[Prediction]:
    """The steps of the most devices, predicted from fewer: all but compute, which does not depend on their number.

    None where fewer than two numbers of devices above one were measured.
    """
    several = sorted((one for one in measured if one["world_size"] > 1), key=lambda one: one["world_size"])
    if len(several) < 2:
        return []
    model, most = fit_model(several[-2], net), several[-1]
    return [
        Prediction(
            most["world_size"],
            row["batch_size"],
            row["seconds"],
            model.step(most["world_size"], row["batch_size"]).total,
            True,
        )
        for row in most["step"]
        if model.compute.batch_sizes[0] <= row["batch_size"] <= model.compute.batch_sizes[-1]
    ]


def step_flops(spec: dict[str, Any], utterances: float, frames: float) -> float:
    """FLOPs of one step's recurrent layers: W and U, 2 H^2 a frame each, three times for forward and backward."""
    return 12.0 * spec["hidden_size"] ** 2 * spec["num_layers"] * frames * utterances


@dataclass(frozen=True)
class ScalingRow:
    """One point of a curve, times in milliseconds; `efficiency` is speed a device against the curve's first point."""

    mode: str
    interconnect: str
    devices: int
    batch_size: float
    accumulation: int
    global_batch_size: float
    step_ms: float
    compute_ms: float
    exposed_ms: float
    hidden_ms: float
    extra_ms: float
    optimizer_ms: float
    utterances_per_second: float
    tflops: float
    efficiency: float


def strong(
    model: Model, net: Interconnect, spec: dict[str, Any], frames: float, devices: Sequence[int], global_batch: int
) -> list[ScalingRow]:
    """A fixed algorithmic batch over more and more devices, in micro-batches of at most the largest measured."""
    rows = []
    for count in devices:
        if count > global_batch:
            continue
        per_device = global_batch / count
        accumulation = max(1, -(-round(per_device) // model.compute.batch_sizes[-1]))
        rows.append(_row("strong", model, net, spec, frames, count, per_device / accumulation, accumulation))
    return _with_efficiency(rows)


def weak(
    model: Model, net: Interconnect, spec: dict[str, Any], frames: float, devices: Sequence[int], batch_size: int
) -> list[ScalingRow]:
    """A fixed per-device batch over more and more devices."""
    return _with_efficiency([_row("weak", model, net, spec, frames, count, batch_size, 1) for count in devices])


def _row(
    mode: str,
    model: Model,
    net: Interconnect,
    spec: dict[str, Any],
    frames: float,
    devices: int,
    batch_size: float,
    accumulation: int,
) -> ScalingRow:
    step = model.step(devices, batch_size, accumulation, net)
    utterances = devices * batch_size * accumulation
    return ScalingRow(
        mode=mode,
        interconnect=net.name,
        devices=devices,
        batch_size=batch_size,
        accumulation=accumulation,
        global_batch_size=utterances,
        step_ms=step.total * 1e3,
        compute_ms=step.compute * 1e3,
        exposed_ms=step.exposed * 1e3,
        hidden_ms=step.hidden * 1e3,
        extra_ms=step.extra * 1e3,
        optimizer_ms=step.optimizer * 1e3,
        utterances_per_second=utterances / step.total,
        tflops=step_flops(spec, utterances, frames) / step.total / 1e12,
        efficiency=0.0,
    )


def _with_efficiency(rows: list[ScalingRow]) -> list[ScalingRow]:
    if not rows:
        return rows
    base = rows[0].utterances_per_second / rows[0].devices
    return [ScalingRow(**asdict(row) | {"efficiency": row.utterances_per_second / row.devices / base}) for row in rows]
