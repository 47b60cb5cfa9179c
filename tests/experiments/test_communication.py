"""The all-reduce model: its limits by hand, and the fit recovers what made the data."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scaling.communication import Message, all_reduce_seconds, fit, ring_seconds, tree_seconds
from experiments.scaling.interconnects import PRESETS, preset

HDR = preset("ib-hdr")


def test_two_gpus_exchange_each_byte_once() -> None:
    net = replace(HDR, ring_start=0.0, ring_gpu_latency=1e-6, gpu_bandwidth=1e9, efficiency=0.5)
    # 2 hops of a microsecond; 2 (n - 1) / n = 1, so all bytes once at half a gigabyte a second.
    assert ring_seconds(1e6, 2, net) == pytest.approx(2e-6 + 2e-3)


def test_one_gpu_waits_for_nobody() -> None:
    assert all_reduce_seconds(1e9, 1, HDR) == 0.0


def test_the_cards_of_a_node_bound_what_crosses_nodes() -> None:
    net = replace(HDR, ring_start=0.0, ring_gpu_latency=0.0, ring_node_latency=0.0, efficiency=1.0)
    assert ring_seconds(1e9, 8, net) == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    assert ring_seconds(1e9, 16, net) == pytest.approx(2 * 15 / 16 * 1e9 / 200e9)


def test_small_messages_take_the_tree_on_many_nodes_and_large_ones_the_ring() -> None:
    assert tree_seconds(1e3, 1024, HDR) < ring_seconds(1e3, 1024, HDR)
    assert ring_seconds(1e10, 16, HDR) < tree_seconds(1e10, 16, HDR)


@given(
    st.sampled_from(sorted(PRESETS)),
    st.floats(1, 1e9),
    st.integers(1, 10).map(lambda power: 2**power),
)
def test_more_bytes_or_more_nodes_never_take_less_time(name: str, size: float, gpus: int) -> None:
    net = preset(name)
    assert all_reduce_seconds(2 * size, gpus, net) >= all_reduce_seconds(size, gpus, net) > 0
    if gpus >= net.gpus_per_node:
        assert all_reduce_seconds(size, 2 * gpus, net) >= all_reduce_seconds(size, gpus, net)


@given(st.floats(1e-6, 1e-3), st.floats(1e8, 1e11), st.sampled_from([2, 4, 8]))
def test_the_fit_recovers_latency_and_bandwidth(hop: float, bandwidth: float, gpus: int) -> None:
    true = replace(
        HDR, ring_start=0.0, ring_gpu_latency=hop, tree_gpu_latency=1.0, gpu_bandwidth=bandwidth, efficiency=1.0
    )
    sizes = [2**power for power in range(10, 30, 2)]
    fitted = fit([Message(size, gpus, ring_seconds(size, gpus, true)) for size in sizes], HDR)
    assert fitted.measured
    for size in sizes:
        assert all_reduce_seconds(size, gpus, fitted) == pytest.approx(ring_seconds(size, gpus, true), rel=1e-6)


def test_a_fit_needs_two_sizes_that_grow() -> None:
    with pytest.raises(ValueError, match="fewer than two message sizes"):
        fit([Message(4096, 2, 1e-3)], HDR)
    with pytest.raises(ValueError, match="do not grow with message size"):
        fit([Message(10**6, 2, 5e-1), Message(10**9, 2, 1e-6)], HDR)


def test_cards_that_come_one_a_gpu_follow_the_node() -> None:
    assert preset("ib-hdr", 4).node_bandwidth == preset("ib-hdr").node_bandwidth / 2
    assert preset("ethernet-25", 4).node_bandwidth == preset("ethernet-25").node_bandwidth


def test_every_preset_names_its_source() -> None:
    assert all("assumption" in one.source and len(one.source) > 40 for one in PRESETS.values())
    with pytest.raises(ValueError, match=r"'infiniband' is unknown; choose from nvlink"):
        preset("infiniband")
