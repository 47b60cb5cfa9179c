"""The planner: what is possible, what is best, and that the effect made to bind is the one it names."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.plan.planner import CLOSE, Problem, batch_sizes, decide, evaluate, gpu_counts
from experiments.scaling.interconnects import preset
from experiments.scaling.step_model import Bucket, Compute

GIB = 2**30
# Efficient at any batch: an utterance costs 10 ms.
LINEAR = Compute((1, 64), (0.004, 0.256), (0.006, 0.384), 0.0)
# Runs empty below 64: any batch costs what 64 does.
FLAT = Compute((1, 64), (0.256, 0.256), (0.384, 0.384), 0.0)
EASY = Problem(
    compute=LINEAR,
    buckets=(Bucket(10**6, 1.0),),
    net=preset("nvlink"),
    most_gpus=64,
    memory=lambda size: size * GIB // 10,
    memory_limit=100 * GIB,
    least_batch=128,
    most_batch=512,
    utterances=1e6,
)


@settings(max_examples=40)
@given(
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 600),
    st.integers(1, 4),
    st.sampled_from([LINEAR, FLAT]),
)
def test_the_plan_is_possible_and_nothing_possible_is_better(
    gpus: int, limit: int, least: int, factor: int, compute: Compute
) -> None:
    problem = replace(
        EASY,
        most_gpus=gpus,
        memory_limit=limit * GIB / 10,
        least_batch=least,
        most_batch=least * factor,
        compute=compute,
    )
    everything = [
        evaluate(problem, n, size, accumulation)
        for n, size in itertools.product(gpu_counts(gpus), batch_sizes(compute))
        for accumulation in {max(1, -(-least // (n * size))), max(1, least * factor // (n * size))}
    ]
    possible = [one for one in everything if not one.reasons]
    if not possible:
        with pytest.raises(ValueError, match="of the GPU may be used"):
            decide(problem)
        return
    best = decide(problem).best
    assert not best.reasons
    assert best.memory_bytes <= problem.memory_limit
    assert least <= best.global_batch_size <= least * factor
    assert best.gpus <= gpus
    assert best.hours <= min(one.hours for one in possible) * (1 + CLOSE) * 1.0001


def test_gpus_bind_where_all_else_is_easy() -> None:
    assert decide(EASY).binding == "GPUs"
    assert decide(EASY).best.gpus == 64


def test_memory_binds_where_large_batches_would_pay() -> None:
    problem = replace(EASY, compute=FLAT, most_gpus=8, memory_limit=0.25 * GIB, most_batch=10**6, least_batch=1)
    decision = decide(problem)
    assert decision.best.batch_size == 2
    assert decision.binding in ("effect 2", "effect 1")
    assert decision.gains["effect 2"] == pytest.approx(1 - 2 / 64, abs=0.01)
    assert decision.gains["effect 3"] == 0.0


def test_the_algorithmic_batch_binds_where_there_are_gpus_enough() -> None:
    decision = decide(replace(EASY, most_gpus=4096))
    assert decision.binding == "effect 3"
    assert decision.best.global_batch_size == 512


def test_the_interconnect_binds_where_it_is_slow() -> None:
    slow = replace(preset("ethernet-25"), gpu_bandwidth=1e7, node_bandwidth=1e7)
    decision = decide(replace(EASY, net=slow, buckets=(Bucket(10**9, 1.0),), least_batch=512))
    assert decision.binding == "interconnect"
    assert decision.best.gpus == 1


def test_a_costly_large_batch_is_avoided() -> None:
    factor = {128: 1.0}
    problem = replace(EASY, most_gpus=8, sample_factor=lambda size: factor.get(size, 3.0))
    assert decide(problem).best.global_batch_size == 128


def test_fewer_gpus_are_taken_where_more_bring_nothing() -> None:
    problem = replace(EASY, compute=FLAT, most_gpus=512, least_batch=64, most_batch=64)
    assert decide(problem).best.gpus == 1


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(
        ValueError, match=r"A batch of 1 needs 0\.1 GiB and 0\.1 GiB of the GPU may be used; take fewer"
    ):
        decide(replace(EASY, memory_limit=0.05 * GIB))
