"""The order of an epoch, for any corpus size, batch size and number of ranks."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.epoch_plan import EpochPlan, by_duration, plan_by_count, plan_by_seconds, plan_evaluation

sizes = st.integers(1, 200)


def durations_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(4, 1.5, rows).clip(0.2, 20)


def of_rank(plan: EpochPlan, rank: int, world_size: int) -> list[int]:
    return [int(row) for s in range(len(plan)) for rows in plan.step(s)[rank::world_size] for row in rows]


def check_epoch(plan: EpochPlan, rows: int) -> None:
    """Every row occurs; only rows of the last step repeat, as many as stated."""
    assert set(plan.rows.tolist()) == set(range(rows))
    assert len(plan.rows) == rows + plan.repeated
    before = np.concatenate([np.zeros(0, int), *(micro for s in range(len(plan) - 1) for micro in plan.step(s))])
    assert len(np.unique(before)) == len(before)


@given(
    rows=sizes,
    per_device=st.integers(1, 5),
    accumulation=st.integers(1, 3),
    world_size=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_steps_of_a_count_cover_the_epoch_on_any_ranks(
    rows: int, per_device: int, accumulation: int, world_size: int, epoch: int
) -> None:
    step = per_device * accumulation * world_size
    plan = plan_by_count(
        durations_of(rows), seed=1, epoch=epoch, global_batch_size=step, per_device_batch_size=per_device
    )
    check_epoch(plan, rows)
    assert len(plan) == -(-rows // step)
    assert plan.repeated == -rows % step
    assert all(len(micro) == per_device for s in range(len(plan)) for micro in plan.step(s))
    shares = [of_rank(plan, rank, world_size) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(row for share in shares for row in share) == sorted(plan.rows.tolist())


@given(rows=sizes, cap=st.floats(20, 100), micro=st.integers(1, 6), epoch=st.integers(0, 3))
def test_steps_of_padded_seconds_cover_the_epoch_and_keep_the_cap(
    rows: int, cap: float, micro: int, epoch: int
) -> None:
    durations = durations_of(rows)
    plan = plan_by_seconds(durations, seed=1, epoch=epoch, seconds_per_batch=cap, micro_batches_per_step=micro)
    check_epoch(plan, rows)
    for s in range(len(plan)):
        batches = plan.step(s)
        assert len(batches) == micro
        for batch in batches:
            assert 0 < len(batch) * durations[batch].max() <= cap * (1 + 1e-9)


@given(rows=st.integers(0, 60), world_size=st.integers(1, 5), batch_size=st.integers(1, 9))
def test_evaluation_shows_each_utterance_once_and_ranks_take_equal_steps(
    rows: int, world_size: int, batch_size: int
) -> None:
    batches = plan_evaluation(durations_of(rows), world_size=world_size, batch_size=batch_size)
    assert sorted(int(row) for rank in batches for batch in rank for row in batch) == list(range(rows))
    assert len({len(rank) for rank in batches}) == 1
    assert all(len(batch) <= batch_size for rank in batches for batch in rank)
    if rows >= world_size and batch_size > 1:
        assert all(len(batch) for rank in batches for batch in rank)


def test_five_utterances_on_two_ranks_count_five() -> None:
    ranks = plan_evaluation(durations_of(5), world_size=2, batch_size=2)
    assert [[len(batch) for batch in rank] for rank in ranks] == [[2, 1], [1, 1]]


@pytest.mark.parametrize("kind", ["count", "seconds"])
def test_the_order_is_a_function_of_seed_and_epoch(kind: str) -> None:
    durations = durations_of(300)

    def order(seed: int, epoch: int) -> list[int]:
        plan = (
            plan_by_count(durations, seed=seed, epoch=epoch, global_batch_size=16, per_device_batch_size=4)
            if kind == "count"
            else plan_by_seconds(durations, seed=seed, epoch=epoch, seconds_per_batch=60, micro_batches_per_step=4)
        )
        return [int(row) for row in plan.rows]

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (1, 2, 3)}) == 6


def test_companions_differ_from_epoch_to_epoch() -> None:
    def pairs(epoch: int) -> set[tuple[int, int]]:
        plan = plan_by_count(durations_of(400), seed=0, epoch=epoch, global_batch_size=8, per_device_batch_size=8)
        return {(a, b) for s in range(len(plan) - 1) for micro in plan.step(s) for a in micro for b in micro if a < b}

    first, second = pairs(1), pairs(2)
    assert len(first & second) < 0.3 * len(first)


@pytest.mark.parametrize("rows", [64, 100])
def test_the_first_epoch_is_sorted_and_the_others_are_not(rows: int) -> None:
    durations = durations_of(rows)
    for options in ({"global_batch_size": 16, "per_device_batch_size": 4},):
        first = plan_by_count(durations, seed=0, epoch=0, **options)
        kept = len(first.rows) - 16 if first.repeated else len(first.rows)
        assert (np.diff(durations[first.rows[:kept]]) >= 0).all()
        second = plan_by_count(durations, seed=0, epoch=1, **options)
        assert not (np.diff(durations[second.rows[:kept]]) >= 0).all()
        plain = plan_by_count(durations, seed=0, epoch=0, sorted_first_epoch=False, **options)
        assert not (np.diff(durations[plain.rows[:kept]]) >= 0).all()


@pytest.mark.parametrize("rows", [5, 100, 997])
def test_a_step_is_the_same_for_every_number_of_ranks_and_micro_batch(rows: int) -> None:
    plans = [
        plan_by_count(durations_of(rows), seed=3, epoch=2, global_batch_size=24, per_device_batch_size=per_device)
        for per_device in (1, 2, 3, 8, 24)
    ]
    for s in range(len(plans[0])):
        assert len({tuple(sorted(np.concatenate(plan.step(s)).tolist())) for plan in plans}) == 1


def librispeech_like(rows: int) -> np.ndarray:
    """A quarter of short utterances, and three quarters between 11 and 17 seconds, as in train-clean-100."""
    random = np.random.default_rng(0)
    return np.where(random.random(rows) < 0.25, random.uniform(1.5, 12, rows), random.normal(14.3, 1.1, rows)).clip(
        1.4, 24.5
    )


def test_buckets_keep_padding_under_five_per_cent_on_librispeech_like_lengths() -> None:
    durations = librispeech_like(28_000)
    for epoch in (0, 1):
        by_seconds = plan_by_seconds(durations, seed=0, epoch=epoch, seconds_per_batch=240, micro_batches_per_step=8)
        assert by_seconds.padding_share(durations) < 0.05
        for per_device in (4, 32):
            by_count = plan_by_count(
                durations, seed=0, epoch=epoch, global_batch_size=32, per_device_batch_size=per_device
            )
            assert by_count.padding_share(durations) < 0.05


def test_padding_share_is_what_it_says() -> None:
    plan = EpochPlan(np.array([0, 1, 2], np.int32), np.array([0, 2, 3]), 1, 0)
    assert plan.padding_share(np.array([1.0, 3.0, 2.0])) == pytest.approx(1 - 6 / 8)


def test_an_utterance_longer_than_the_cap_is_an_error_that_says_how_many() -> None:
    with pytest.raises(
        ValueError, match=r"2 utterances are longer than seconds_per_batch=4 .the longest: 9\.00 s.*max_duration"
    ):
        plan_by_seconds(np.array([1.0, 9.0, 5.0]), seed=0, epoch=0, seconds_per_batch=4, micro_batches_per_step=1)


def test_sizes_that_do_not_divide_are_an_error() -> None:
    with pytest.raises(ValueError, match="global_batch_size 10 is not a multiple of per_device_batch_size 4"):
        plan_by_count(durations_of(9), seed=0, epoch=0, global_batch_size=10, per_device_batch_size=4)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(41, 64))
def test_a_corpus_smaller_than_a_step_fills_it_by_repeating(rows: int, step: int) -> None:
    plan = plan_by_count(durations_of(rows), seed=0, epoch=1, global_batch_size=step, per_device_batch_size=1)
    assert len(plan) == 1
    counts = np.bincount(plan.rows, minlength=rows)
    assert counts.min() >= 1
    assert counts.max() - counts.min() <= 1


@given(st.lists(st.floats(0, 1e6, allow_subnormal=True) | st.sampled_from([0.5, 1.0, 1.0 + 1e-12]), max_size=50))
def test_rows_are_sorted_by_duration_and_equal_ones_stay_in_their_order(durations: list[float]) -> None:
    seconds = np.array(durations, np.float64)
    assert by_duration(seconds).tolist() == np.argsort(seconds.astype(np.float32), kind="stable").tolist()
    assert by_duration(seconds).dtype == np.int32


@pytest.mark.alone
@pytest.mark.slow
def test_a_run_on_6_000_000_utterances_goes_on_within_a_second() -> None:
    """The plan of an epoch is all of it that grows with the corpus; processor time, since the machine is shared."""
    durations, taken = durations_of(6_000_000), []
    for _ in range(5):  # the quickest: neighbours on the same processor lengthen its time too
        began = time.process_time()
        plan = plan_by_count(durations, seed=1, epoch=2, global_batch_size=512, per_device_batch_size=4)
        taken.append(time.process_time() - began)
    assert len(plan) == -(-6_000_000 // 512)
    assert min(taken) < 1, taken
