"""What stands at the ticks of charts, drawn as the page draws them: each value once, whole numbers as whole numbers."""

import re
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from experiments.memory.report import figure as memory_figure
from experiments.report import figures
from experiments.report.figures import DEPTH, Axis
from experiments.throughput.report import figure as throughput_figure
from tests.experiments.synthetic import study_rows, write_run

TOPS = [3e-5, 0.00021, 0.0011, 0.0015, 0.0021, 0.05, 0.7, 1.3, 9.0, 14.0, 90.0, 150.0, 900.0, 4000.0]


def ticks(chart: Any) -> list[list[str]]:
    """The labels of each axis of a chart."""
    svg = vl_convert.vegalite_to_svg({**chart.to_dict(), "width": 460})
    axes = re.findall(r'<g class="mark-text role-axis-label".*?</g>', svg, re.DOTALL)
    return [re.findall(r">([^<>]+)</text>", axis) for axis in axes]


def check(labels: list[str]) -> None:
    assert len(labels) >= 2, "one tick says nothing about a scale"
    numbers = [float(label.replace(",", "").replace("−", "-")) for label in labels]
    assert numbers == sorted(set(numbers)), "a value stands there twice"
    assert not any("e" in label for label in labels)


@pytest.mark.parametrize("top", TOPS)
def test_throughput_of_any_size_has_ticks_that_differ(top: float) -> None:
    rows = [
        {"backend": name, "batch_size": size, "tflops": top * share, "pass": "forward"}
        | {"us_per_step": 10.0, "us_per_step_low": 9.0, "us_per_step_high": 11.0}
        for name, best in (("torch", 1.0), ("reference", 0.7))
        for size, share in ((1, 0.3 * best), (4, best))
    ]
    for zoom in (False, True):
        for labels in ticks(throughput_figure(rows, "forward", zoom=zoom)):
            check(labels)


@pytest.mark.parametrize("top", [2.0**power for power in range(12, 40, 3)])
def test_memory_of_any_size_has_ticks_that_differ(top: float) -> None:
    rows = [
        {
            "num_layers": depth,
            "policy": "save",
            "peak_memory_bytes": top * depth / 8,
            "baseline_peak_memory_bytes": None,
        }
        for depth in (1, 2, 8)
    ]
    depths, bytes_ = ticks(memory_figure(rows, "peak_memory_bytes", None))
    assert depths == ["1", "2", "8"]
    check(bytes_)


@pytest.mark.parametrize(
    "depths", [(1, 2), (2, 3, 4), (1, 2, 4, 8), (8, 48, 88), tuple(range(1, 20)), (500, 1000, 2000)]
)
def test_depths_are_whole_numbers(depths: tuple[int, ...], tmp_path: Path) -> None:
    for depth in depths:
        write_run(tmp_path, depth, 0)
    x, y = ticks(figures.word_error_rate(study_rows(tmp_path), DEPTH))
    assert all(re.fullmatch(r"[\d,]+", label) for label in x)
    if len(depths) <= figures.MOST_AXIS_VALUES:
        assert [int(label.replace(",", "")) for label in x] == list(depths)
    check(x)
    check(y)


@pytest.mark.parametrize("rates", [(0.001, 0.0012), (0.0003, 0.001, 0.003), (0.05, 0.1), (1.0, 1.5)])
def test_an_axis_of_numbers_shows_each_as_it_is(rates: tuple[float, ...]) -> None:
    rows = [
        {"rate": rate, "wer": 0.1 + rate, "name": str(rate), "seed": 0, "status": "finished", "reason": None}
        for rate in rates
    ]
    x, _ = ticks(figures.metric(rows, Axis("rate", "learning rate", "rate"), "wer", "WER"))
    assert [float(label) for label in x] == list(rates)


@pytest.mark.parametrize(
    "wers", [(1.0, 1.0), (0.0, 0.0), (0.031, 0.031), (0.9979, 1.0), (0.02, 0.5), (1.2, 1.2), (0.07,)]
)
def test_word_error_rates_that_are_alike_still_have_a_scale(wers: tuple[float, ...], tmp_path: Path) -> None:
    for depth in range(1, len(wers) + 1):
        write_run(tmp_path, depth, 0)
    rows = [row | {"wer": wer} for row, wer in zip(study_rows(tmp_path), wers, strict=True)]
    for chart in (figures.word_error_rate(rows, DEPTH), figures.trade_off(rows, DEPTH)):
        *_, labels = ticks(chart)
        check(labels)
