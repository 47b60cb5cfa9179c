"""The data-parallel step: buckets as torch's reducer fills them, what hides and what shows, and the overlap's fit."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from experiments.scaling.step_model import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    Compute,
    Overlap,
    buckets_of,
    fit_overlap,
    step_time,
    uniform_gradients,
)

COMPUTE = Compute((1, 4, 16), (0.1, 0.1, 0.4), (0.2, 0.2, 0.8), 0.01)
EVENLY = [Bucket(100, (i + 1) / 4) for i in range(4)]


@given(st.lists(st.integers(1, 40 * 2**18), min_size=1, max_size=60))
def test_buckets_are_those_of_torchs_reducer(numbers: list[int]) -> None:
    tensors = [torch.empty(number, device="meta") for number in numbers]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
    sizes = [sum(4 * numbers[i] for i in bucket) for bucket in theirs]
    ours = buckets_of([(4 * number, (i + 1) / len(numbers)) for i, number in enumerate(numbers)])
    assert [bucket.size for bucket in ours] == sizes
    assert [bucket.ready for bucket in ours] == sorted(bucket.ready for bucket in ours)
    assert ours[-1].ready == 1.0


def test_all_but_the_last_bucket_hides_behind_a_slow_backward() -> None:
    step = step_time(COMPUTE, 4, EVENLY, lambda _: 0.03)
    assert step.compute == pytest.approx(0.3)
    assert step.exposed == pytest.approx(0.03)
    assert step.hidden == pytest.approx(3 * 0.03)
    assert step.total == pytest.approx(0.3 + 0.03 + 0.01)


def test_a_slow_network_shows_all_but_its_first_part() -> None:
    step = step_time(COMPUTE, 4, EVENLY, lambda _: 1.0)
    # The first bucket starts at 0.15; four seconds follow without a gap; compute ends at 0.3.
    assert step.exposed == pytest.approx(0.15 + 4 - 0.3)


def test_accumulation_computes_more_and_communicates_once() -> None:
    one, four = (step_time(COMPUTE, 4, EVENLY, lambda _: 0.03, accumulation=a) for a in (1, 4))
    assert four.compute == pytest.approx(4 * one.compute)
    assert four.exposed == one.exposed
    with pytest.raises(ValueError, match="accumulation 0"):
        step_time(COMPUTE, 4, EVENLY, lambda _: 0.03, accumulation=0)


def test_compute_is_flat_below_and_goes_on_above_what_was_measured() -> None:
    assert COMPUTE.at(1) == COMPUTE.at(0.5) == (0.1, 0.2)
    assert COMPUTE.at(10) == pytest.approx((0.25, 0.5))
    assert COMPUTE.at(28) == pytest.approx((0.7, 1.4))
    assert COMPUTE.without(4).at(4) == pytest.approx((0.16, 0.32))


@given(st.floats(0, 2), st.floats(0, 0.05))
def test_the_overlap_is_recovered(contention: float, overhead: float) -> None:
    true = Overlap(contention, overhead)
    ideal = [step_time(COMPUTE, size, EVENLY, lambda _: 0.06) for size in (1, 8, 16)]
    real = [step_time(COMPUTE, size, EVENLY, lambda _: 0.06, overlap=true).total for size in (1, 8, 16)]
    found = fit_overlap(list(zip(real, ideal, strict=True)))
    for size, seconds in zip((1, 8, 16), real, strict=True):
        assert step_time(COMPUTE, size, EVENLY, lambda _: 0.06, overlap=found).total == pytest.approx(seconds, rel=1e-6)


def test_a_step_faster_than_the_ideal_fits_no_negative_cost() -> None:
    ideal = step_time(COMPUTE, 4, EVENLY, lambda _: 0.06)
    assert fit_overlap([(0.5 * ideal.total, ideal)]) == Overlap(0.0, 0.0)
    with pytest.raises(ValueError, match="No measured step"):
        fit_overlap([])


def test_equal_layers_make_their_gradients_at_equal_intervals() -> None:
    made = uniform_gradients(4, 1000, 300)
    assert sum(size for size, _ in made) == 4 * 1000 + 300
    assert [moment for _, moment in made][::2] == [0.25, 0.5, 0.75, 1.0, 1.0]
