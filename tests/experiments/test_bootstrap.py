"""The paired bootstrap: pairs, seeds, certainty where there is some; and the file it reads."""

import io
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.report import findings
from experiments.report.bootstrap import Difference, Errors, paired_difference
from experiments.report.comparisons import compared, points, told_apart
from experiments.report.figures import DEPTH
from experiments.report.page import Study, render
from experiments.report.table import Row
from experiments.report.terminal import summary_table
from experiments.run.utterance_errors import read_errors, write_errors
from tests.experiments.synthetic import study_rows, write_run


def heard(seed: int, share: float, count: int = 200) -> dict[str, tuple[int, int]]:
    random_ = random.Random(seed)
    return {f"u{i}": (sum(random_.random() < share for _ in range(5)), 5) for i in range(count)}


def test_a_clear_difference_is_clear_and_none_is_none() -> None:
    clear = paired_difference([heard(0, 0.3)], [heard(1, 0.1)])
    assert clear is not None
    assert 0 < clear.low < clear.observed < clear.high
    assert clear.observed == pytest.approx(0.2, abs=0.03)
    same = paired_difference([heard(0, 0.2)], [heard(1, 0.2)])
    assert same is not None
    assert same.low < 0 < same.high


def test_pairing_sees_what_unpaired_intervals_would_not() -> None:
    # Hard and easy utterances; one side errs once more on every tenth: tiny, but on the same utterances.
    theirs = {f"u{i}": (5 if i % 2 else 0, 10) for i in range(400)}
    ours = {name: (errors + (int(name[1:]) % 10 == 0), words) for name, (errors, words) in theirs.items()}
    one = paired_difference([ours], [theirs])
    assert one is not None
    assert one.observed == pytest.approx(0.01)
    assert one.low > 0


@given(st.integers(0, 50), st.floats(0.0, 0.6), st.floats(0.0, 0.6))
def test_the_other_way_round_is_the_negative(seed: int, left: float, right: float) -> None:
    ours, theirs = heard(seed, left, 40), heard(seed + 100, right, 40)
    one, other = paired_difference([ours], [theirs], 200), paired_difference([theirs], [ours], 200)
    assert one is not None
    assert other is not None
    assert one.observed == pytest.approx(-other.observed)
    assert one.low == pytest.approx(-other.high)
    assert one.low <= one.observed + 1e-9 or one.low == pytest.approx(one.observed, abs=0.2)


def test_seeds_are_pooled_and_only_shared_utterances_count() -> None:
    ours: list[Errors] = [{"a": (1, 2), "b": (0, 2)}, {"a": (0, 2), "b": (1, 2)}]
    theirs: list[Errors] = [{"a": (0, 2), "b": (0, 2), "c": (9, 9)}]
    one = paired_difference(ours, theirs)
    assert one is not None
    assert (one.observed, one.utterances) == (0.25, 2)
    assert paired_difference([], theirs) is None
    assert paired_difference([{"x": (0, 1)}], theirs) is None
    assert paired_difference([{"a": (0, 0)}], [{"a": (0, 0)}]) is None


def test_the_file_comes_back_as_it_was(tmp_path: Path) -> None:
    told = {"train/a, b.wav": (1, 3), 'c "quoted"': (0, 0)}
    write_errors(tmp_path, told)
    assert read_errors(tmp_path) == told
    assert read_errors(tmp_path / "absent") == {}


def test_the_bounds_are_those_of_a_plain_recomputation() -> None:
    """The textbook's way: utterance by utterance, drawn by index, another generator; three seeds a side."""
    ours, theirs = [heard(seed, 0.22, 300) for seed in (1, 2, 3)], [heard(seed, 0.2, 300) for seed in (4, 5, 6)]
    one = paired_difference(ours, theirs, 10_000)
    assert one is not None
    names = sorted(ours[0])
    errors, words = (
        [np.array([sum(seed[name][column] for seed in side) for name in names]) for side in (ours, theirs)]
        for column in (0, 1)
    )
    random_, differences = np.random.default_rng(99), []
    for _ in range(10_000):
        drawn = random_.integers(0, len(names), len(names))
        left, right = (errors[side][drawn].sum() / words[side][drawn].sum() for side in (0, 1))
        differences.append(left - right)
    low, high = np.percentile(differences, [2.5, 97.5])
    observed = errors[0].sum() / words[0].sum() - errors[1].sum() / words[1].sum()
    assert one.observed == pytest.approx(observed, abs=1e-12)
    # The bounds' own standard error at 10,000 draws is about 0.025 of the interval's width.
    assert one.low == pytest.approx(low, abs=0.05 * (high - low))
    assert one.high == pytest.approx(high, abs=0.05 * (high - low))


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Two recognisers that really are the same: about 5 % of the intervals leave zero out."""
    missed = 0
    for trial in range(200):
        one = paired_difference([heard(2 * trial, 0.2, 120)], [heard(2 * trial + 1, 0.2, 120)], 400)
        missed += one is not None and told_apart(one)
    assert 2 <= missed <= 22  # binomial(200, 0.05): 99.9 % within


@pytest.fixture
def three_depths(tmp_path: Path) -> tuple[Path, list[Row]]:
    for depth in (1, 4, 8):
        for seed in (0, 1):
            write_run(tmp_path, depth, seed)
    return tmp_path, study_rows(tmp_path)


def test_every_depth_is_set_against_the_best_and_the_one_before(three_depths: tuple[Path, list[Row]]) -> None:
    root, rows = three_depths
    found = findings.groups(rows, ["num_layers"])
    one, four, eight = compared(rows, found, findings.best(found), root)
    assert [each.words for each in (one, four, eight)] == ["1 layer", "4 layers", "8 layers"]
    assert (one.before, eight.best) == (None, None)
    assert one.best is not None
    assert one.best.observed > 0.15
    assert told_apart(one.best)
    assert four.before is not None
    assert four.before.observed == pytest.approx(four.best.observed - one.best.observed)  # type: ignore[union-attr]
    assert eight.before is not None
    turned = Difference(-eight.before.observed, -eight.before.high, -eight.before.low, 120)
    assert vars(four.best) == pytest.approx(vars(turned))  # type: ignore[arg-type]


def test_with_two_things_varied_the_one_before_has_the_same_second(tmp_path: Path) -> None:
    for depth in (1, 4):
        for width in (32, 64):
            write_run(tmp_path, depth, 0, hidden_size=width)
    rows = study_rows(tmp_path)
    found = findings.groups(rows, ["num_layers", "hidden_size"])
    said = {one.words: one for one in compared(rows, found, findings.best(found), tmp_path)}
    by_hand = paired_difference(*([_heard(tmp_path, rows, depth, 32)] for depth in (4, 1)))
    assert said["4 layers, 32 units"].before == by_hand
    assert said["1 layer, 64 units"].before is None


def _heard(root: Path, rows: list[Row], depth: int, width: int) -> Errors:
    [row] = [row for row in rows if (row["num_layers"], row["hidden_size"]) == (depth, width)]
    return read_errors(root / row["folder"])


def test_it_is_on_the_page_on_the_terminal_and_in_the_record(three_depths: tuple[Path, list[Row]]) -> None:
    root, rows = three_depths
    found = findings.groups(rows, ["num_layers"])
    one = compared(rows, found, findings.best(found), root)[0]
    said = points(one.best)
    assert re.fullmatch(r"\+\d+\.\d\d \[\+\d+\.\d\d,\s\+\d+\.\d\d\]", said)
    page = render(Study("WER by depth", "Is deeper better?", "python", rows, root))
    assert f'<td class="prose">1 layer</td><td>{said}</td><td>–</td>' in page
    assert "spec-differences" in page
    console = Console(file=io.StringIO(), width=200)
    console.print(summary_table(rows, DEPTH, root))
    assert said in console.file.getvalue()  # type: ignore[attr-defined]
    record = one.record()
    assert record["against_best"]["observed"] == one.best.observed  # type: ignore[union-attr]
    assert (record["against_before"], record["against_best"]["told_apart"]) == (None, True)


def test_one_depth_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    write_run(tmp_path, 4, 0)
    rows = study_rows(tmp_path)
    found = findings.groups(rows, ["num_layers"])
    assert compared(rows, found, findings.best(found), tmp_path) == []
    assert "spec-differences" not in render(Study("t", "q", "c", rows, tmp_path))
