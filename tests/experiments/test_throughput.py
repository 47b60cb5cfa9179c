"""The throughput experiment on CPU: the check before the speed, the files, the figures' arithmetic."""

import argparse
import csv
import itertools
import json
from dataclasses import replace

import pytest
import torch

from experiments.cli import main
from experiments.throughput import command as throughput
from experiments.throughput import rivals
from experiments.throughput.rivals import Problem, rival, unavailable

CPU = torch.device("cpu")
GRID = [
    "--device=cpu",
    "--hidden-sizes=16",
    "--batch-sizes=1,4",
    "--time-steps=5",
    "--dtypes=float32",
    "--rounds=1",
    "--backends=persistent,reference,torch",
]


def test_writes_rows_table_and_page(tmp_path, capsys):
    assert main(["throughput", *GRID, "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "throughput.json").read_text())["rows"]
    timed = [row for row in rows if row["us_per_step"] is not None]
    expected = itertools.product(("reference", "torch"), (1, 4), ("forward", "both"))
    assert {(row["backend"], row["batch_size"], row["pass"]) for row in timed} == set(expected)
    for row in timed:
        flops = 2 * 16 * 16 * row["batch_size"] * {"forward": 1, "both": 3}[row["pass"]]
        assert row["tflops"] == pytest.approx(flops / (row["us_per_step"] * 1e-6) / 1e12)
        assert row["us_per_step_low"] <= row["us_per_step"] <= row["us_per_step_high"]
        assert row["error"] <= row["error_allowed"]
    assert all("GPU" in row["reason"] for row in rows if row["backend"] == "persistent")
    with (tmp_path / "table.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    page = (tmp_path / "report.html").read_text()
    assert "mini-batch 1 to 16" in page
    assert "not timed - persistent" in capsys.readouterr().out


@pytest.mark.parametrize("spoil", [lambda out: out * 1.001, lambda out: out * float("nan")], ids=["off by 1e-3", "NaN"])
def test_reports_no_speed_for_a_wrong_result(monkeypatch, spoil):
    honest = rivals.rival

    def wrong(backend, problem):
        made = honest(backend, problem)
        if backend != "torch":
            return made
        return replace(made, both=lambda: tuple(spoil(tensor) for tensor in made.both()))

    monkeypatch.setattr(rivals, "rival", wrong)
    rows = list(
        throughput.measure(16, 2, 5, "float32", ["reference", "torch"], ["forward", "both"], 1, CPU, {"float32": 1.0})
    )
    by_backend = {row["backend"]: row for row in rows}
    assert by_backend["reference"]["us_per_step"] > 0
    assert by_backend["torch"]["us_per_step"] is None
    assert "differs from the reference" in by_backend["torch"]["reason"]


@pytest.mark.parametrize("backends", [["persistent"], ["flashrnn", "cudnn", "gemm"]], ids=len)
def test_without_a_figure_the_command_fails_with_every_reason(tmp_path, capsys, backends):
    output = tmp_path / "out"
    grid = [option for option in GRID if not option.startswith("--backends")]
    assert main(["throughput", *grid, f"--backends={','.join(backends)}", f"--output={output}"]) == 1
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    for backend in backends:
        assert line.count(f"{backend}: ") == 1
    assert said.out == ""
    assert not output.exists()


def test_torch_rival_computes_what_the_reference_does():
    problem = Problem.draw(7, 3, 24, torch.float64, CPU)
    for mine, theirs in zip(rival("reference", problem).both(), rival("torch", problem).both(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_every_backend_says_why_it_cannot_run_here():
    problem = Problem.draw(2, 1, 8, torch.float32, CPU)
    for backend in throughput.BACKENDS:
        reasons = unavailable(backend, problem)
        assert bool(reasons) == (backend not in ("reference", "torch"))


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--hidden-sizes", "12,x", "comma-separated list of whole numbers"),
        ("--batch-sizes", "0", "sizes start at 1"),
        ("--dtypes", "float8", "choose from bfloat16"),
    ],
)
def test_bad_options_get_one_sentence(option, value, says, capsys):
    parser = argparse.ArgumentParser()
    throughput.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([option, value])
    assert says in capsys.readouterr().err
