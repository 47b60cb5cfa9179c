"""The commands: what they print, and one sentence for what they cannot do."""

import re

import pytest

from prnn_ext import __main__ as command
from prnn_ext import benchmark


@pytest.mark.parametrize("name", ["benchmark", "plan", "build"])
def test_help_gives_an_example_that_parses(name, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="0"):
        command.main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    example = re.search(r"example: python -m prnn_ext (.*)", text)
    assert example is not None
    monkeypatch.setattr(command, f"_{name}", lambda options: 7)
    assert command.main(example[1].split()) == 7


def test_benchmark_prints_a_row_a_size(capsys):
    given = "benchmark --hidden 8,16 --batch 1,2 --time-steps 3 --repeats 2"
    assert command.main(given.split()) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [(int(r[0]), int(r[1])) for r in rows] == [(8, 1), (8, 2), (16, 1), (16, 2)]
    assert all(float(r[4]) > 0 for r in rows)


def test_benchmark_times_nothing_that_is_wrong(monkeypatch):
    right = benchmark._step
    monkeypatch.setattr(
        benchmark,
        "_step",
        lambda layer, *given: [v * (1.1 if type(layer).__name__ == "RNN" else 1) for v in right(layer, *given)],
    )
    with pytest.raises(AssertionError, match="not close"):
        next(benchmark.points([8], [2], 3, 2))


def least_lead() -> float:
    """Over the two sizes with the smallest measured lead (docs/CPU_BENCHMARK.md), by processor time on one thread."""
    import time

    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        points = [*benchmark.points([128], [32], 100, 11, clock=time.process_time)]
        points += benchmark.points([256], [16], 100, 11, clock=time.process_time)
    finally:
        torch.set_num_threads(threads)
    return min(point.ratio for point in points)


@pytest.mark.alone
@pytest.mark.slow
def test_no_change_has_made_it_much_slower_than_torch_rnn():
    """Where neighbours take cache and memory, 0.84 and 0.91 were seen (2026-12-01)."""
    assert least_lead() >= 0.7


@pytest.mark.idle
@pytest.mark.slow
def test_no_slower_than_torch_rnn_where_it_is_closest():
    assert least_lead() >= 1.0


def test_plan_says_why(capsys):
    assert command.main(["plan", "--hidden", "12", "--device", "cpu"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "reference"
    assert out[1].startswith("not persistent: The persistent kernel runs on CUDA tensors")
    assert command.main(["plan", "--hidden", "12", "--device", "cpu", "--backend", "persistent"]) == 1
    assert "backend='persistent' cannot run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("build --sizes 256 --arch sm_1", "arch is 'sm_1'; choose one of sm_80"),
        ("build --sizes 256 --dtype int8", "dtype is 'int8'; choose one of bfloat16"),
        ("build --sizes 256 --activation gelu", "activation is 'gelu'; choose one of"),
    ],
)
def test_build_refuses_unknown_names(given, sentence, capsys):
    assert command.main(given.split()) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("sizes", ["0", "a", "", "4,-1"])
def test_sizes_are_positive_integers(sizes, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["build", "--sizes", sizes])
    assert "positive integers separated by commas" in capsys.readouterr().err


@pytest.mark.slow
def test_build_fills_a_folder_in_parallel(tmp_path, capsys):
    given = f"build --sizes 64 --batch 4 --dtype bfloat16,float32 --workers 2 --cache {tmp_path}"
    for _ in range(2):  # the second time from the folder
        assert command.main(given.split()) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == f"4 of 4 kernels in {tmp_path}"
        assert [line.split("]")[0] for line in lines[:4]] == [f"[{n}/4" for n in (1, 2, 3, 4)]
        assert all(line.endswith(" 0 bytes spilled") for line in lines[:4])
    # In bfloat16 a block has one tile, so forward and backward are there for an H200's two sides of L2 as well.
    assert len(list(tmp_path.glob("*.bin"))) == 4 + 2


def test_build_goes_on_after_a_size_that_cannot_run(tmp_path):
    from prnn_ext import build

    jobs = build.jobs([1 << 20], [4], ["bfloat16"], ["relu"], "sm_90a")
    assert [build.build_one(job, tmp_path).error is not None for job in jobs] == [True, True]
    (small, _) = build.jobs([32], [4], ["bfloat16"], ["relu"], "sm_90a")
    built = build.build_one(small, tmp_path)
    assert built.error is None
    assert built.registers > 0
