"""`metrics.jsonl` survives a kill; curves keep their spikes."""

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.run.curves import MOST_POINTS, decimate, read_metrics, write_curves
from experiments.run.metrics_log import MetricsLog


def test_lines_are_appended_and_strict_json(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.log_metrics({"train/loss": 2.0, "epoch": 0}, step=1)
    log.log_metrics({"train/loss": float("nan"), "epoch": 0}, step=2)
    assert read_metrics(log.path) == [
        {"step": 1, "train/loss": 2.0, "epoch": 0},
        {"step": 2, "train/loss": None, "epoch": 0},
    ]


def test_a_resumed_run_tells_nothing_twice(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(1, 6):
        log.log_metrics({"train/loss": float(step)}, step=step)
    with log.path.open("a") as file:
        file.write('{"step": 6, "train/l')  # killed in mid-write
    log = MetricsLog(tmp_path)
    log.rewind(3)
    assert log.lines == 3
    log.log_metrics({"train/loss": 40.0}, step=4)
    assert log.lines == 4
    assert [(line["step"], line["train/loss"]) for line in read_metrics(log.path)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 40.0),
    ]


def test_a_run_without_a_line_has_no_curves(tmp_path: Path) -> None:
    MetricsLog(tmp_path).rewind(0)
    write_curves(tmp_path)
    assert json.loads((tmp_path / "curves.json").read_text()) == {}


def test_curves_are_by_metric(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.log_metrics({"train/loss": 2.0, "epoch": 0}, step=1)
    log.log_metrics({"val/wer": 0.5, "val/loss": float("inf"), "epoch": 0}, step=1)
    write_curves(tmp_path)
    assert json.loads((tmp_path / "curves.json").read_text()) == {"train/loss": [[1, 2.0]], "val/wer": [[1, 0.5]]}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3 * MOST_POINTS), st.integers(4, MOST_POINTS))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
def test_decimation_keeps_order_and_extremes(values: list[float], most: int) -> None:
    curve = list(enumerate(values))
    kept = decimate(curve, most)
    assert len(kept) <= most or len(curve) <= most
    assert kept == sorted(set(kept))
    assert set(kept) <= set(curve)
    assert min(v for _, v in kept) == min(values)
    assert max(v for _, v in kept) == max(values)
