"""`python -m experiments plan` through its door: files, sources, cards, and a sentence for each mistake."""

import argparse
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.cli import main
from experiments.memory.bare_step import StepOptions
from experiments.memory.prediction import WORKSPACE, predict
from experiments.plan.command import plan as library
from experiments.plan.layer_times import OWN_MEASUREMENT
from experiments.plan.memory import memory_of, parameter_count
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.network import AcousticNetwork
from models.spec_augment import SpecAugmentOptions
from models.stack import StackOptions

ROOT = Path(__file__).parents[2]
CARD = ROOT / "experiments" / "configs" / "studies" / "plan.yaml"


def plan(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """A plan for 8 layers, whose memory is traced in a second or two, unless the arguments say otherwise."""
    assert main(["plan", f"--output={tmp_path}", "--num-layers=8", *arguments]) == 0
    return dict(json.loads((tmp_path / "plan.json").read_text()))


def throughput(path: Path, **change: Any) -> Path:
    """A throughput.json of two widths."""
    rows = [
        {
            "backend": backend,
            "hidden_size": width,
            "batch_size": size,
            "time_steps": 512,
            "dtype": "bfloat16",
            "pass": which,
            "us_per_step": us * width / 1000 * (1 if which == "forward" else 3),
        }
        for backend, us in (("persistent", 1.0), ("cudnn", 20.0))
        for width in (1000, 2000)
        for size in (1, 4, 64)
        for which in ("forward", "both")
    ]
    record = {"rows": rows, "peak_tflops": {"bfloat16": 700.0}, "device": "a GPU", "date": "2026-11-30"} | change
    path.write_text(json.dumps(record))
    return path


@pytest.mark.slow
def test_the_card_plans_the_papers_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"--output={tmp_path}", f"--config={CARD}"]) == 0
    record = json.loads((tmp_path / "plan.json").read_text())
    assert record["plan"]["possible"]
    assert 128 <= record["plan"]["global_batch_size"] <= 512
    assert record["plan"]["memory_bytes"] < record["memory_limit_bytes"]
    assert record["parameters"] == pytest.approx(234e6, rel=0.02)
    said = capsys.readouterr().out
    assert "what binds" in said
    assert "hours to finish" in said
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert {"gpus", "batch_size", "accumulation", "hours", "memory_bytes", "reason"} <= set(rows[0])
    assert "Sources" in (tmp_path / "report.html").read_text()


def test_every_number_has_a_source(tmp_path: Path) -> None:
    record = plan(tmp_path, "--gpus=64", f"--throughput={throughput(tmp_path / 't.json')}")
    assert {fact["kind"] for fact in record["facts"]} == {"given", "measured", "predicted", "assumption"}
    assert all(fact["source"] for fact in record["facts"])
    measured = [fact for fact in record["facts"] if fact["kind"] == "measured"]
    assert all("t.json, a GPU, 2026-11-30" in fact["source"] for fact in measured)
    between = next(fact for fact in measured if "mini-batch 4" in fact["name"])
    assert between["value"] == pytest.approx(3 * 1.152)
    assert "between 1000 and 2000 units" in between["source"]


def test_without_a_file_it_stands_on_what_was_measured_of_the_kernel(tmp_path: Path) -> None:
    facts = {fact["name"]: fact for fact in plan(tmp_path)["facts"]}
    four, eight = (facts[f"recurrence (persistent), mini-batch {size}, both passes"] for size in (4, 8))
    assert (four["kind"], four["value"]) == ("measured", 1.65)
    assert four["source"] == (
        "h200.json, NVIDIA H200, 2026-12-01, commit b568d6e, "
        "python tests/gpu/kernel_bench.py required waits sizes batches required"
    )
    # Forward and backward were timed there, the gradient of U is a GEMM: 2 H^2 b FLOPs at half of 989 TFLOP/s.
    assert eight["value"] == pytest.approx(0.82 + 0.91 + 2 * 1152**2 * 8 / (0.5 * 989e6))
    assert (eight["kind"], "dU not timed" in eight["source"]) == ("predicted", True)


@pytest.mark.parametrize("width", [480, 704, 1632, 2560])
def test_another_width_is_planned_up_to_the_mini_batch_that_was_timed(tmp_path: Path, width: int) -> None:
    record = plan(tmp_path, f"--hidden-size={width}")
    facts = {fact["name"]: fact for fact in record["facts"]}
    assert facts[f"largest mini-batch timed at {width} units"]["value"] == 4
    assert max(row["batch_size"] for row in record["rows"]) == 4


def test_the_measured_file_says_what_the_kernels_page_says() -> None:
    """Every row is in a table of docs/KERNEL.md, "Measured", and every timing there that the planner may use is a
    row."""
    page = (ROOT / "docs" / "KERNEL.md").read_text().split("\n## Measured\n")[1].split("\n## ")[0]
    told = {}
    for line in page.splitlines():
        found = re.match(r"\| (\d+) x (\d+) (\w+) \| ([\d.]+).*? \| ([\d.]+).*? \| ([\d.]+) \| ([\d.]+)", line)
        if found:
            width, size, dtype, *times = found.groups()
            for name, us in zip(("forward", "backward", "weight gradient", "both"), times, strict=True):
                told[int(width), int(size), dtype, name, 1024] = float(us)
    for heading, of in (("| hidden |", lambda n: (n, 4)), ("| mini-batch |", lambda n: (1152, n))):
        header, _, *lines = page[page.index(heading) :].splitlines()[:4]
        columns = [int(cell) for cell in header.split("|")[2:-1]]
        for line in lines:
            name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
            for column, us in zip(columns, cells, strict=True):
                width, size = of(column)
                if size <= 64 and (width, size, "bfloat16", name, 1024) not in told:
                    told[width, size, "bfloat16", name, 512] = float(us)
    record = json.loads(OWN_MEASUREMENT.read_text())
    rows = {
        tuple(row[key] for key in ("hidden_size", "batch_size", "dtype", "pass", "time_steps")): row["us_per_step"]
        for row in record["rows"]
    }
    assert rows == told
    assert len(rows) == len(record["rows"]) > 60
    assert f"at commit {record['commit']}" in page
    assert record["command"].removeprefix("python ") in page


@pytest.mark.slow
def test_the_throughput_commands_own_file_is_read_as_it_is(tmp_path: Path) -> None:
    grid = ["--hidden-sizes=64", "--batch-sizes=1,4", "--time-steps=16", "--dtypes=float32", "--rounds=1"]
    only = ["--device=cpu", "--backends=reference", f"--output={tmp_path / 'measured'}"]
    assert main(["throughput", *grid, *only]) == 0
    path = tmp_path / "measured" / "throughput.json"
    record = plan(tmp_path, f"--throughput={path}", "--backend=reference", "--hidden-size=64", "--precision=fp32")
    rows = {(row["batch_size"], row["pass"]): row for row in json.loads(path.read_text())["rows"]}
    facts = {fact["name"]: fact for fact in record["facts"]}
    for size in (1, 4):
        fact = facts[f"recurrence (reference), mini-batch {size}, both passes"]
        assert (fact["kind"], fact["value"]) == ("measured", rows[size, "both"]["us_per_step"])
        assert fact["source"].startswith("throughput.json, ")
    assert facts["GEMM peak"]["kind"] == "measured"


def test_what_the_user_gives_is_given_and_what_not_is_assumed(tmp_path: Path) -> None:
    facts = {fact["name"]: fact for fact in plan(tmp_path, "--corpus-hours=100")["facts"]}
    assert facts["corpus"]["kind"] == "given"
    assert facts["epochs"]["kind"] == "assumption"


def test_a_slower_layer_takes_longer_and_recomputing_less_memory(tmp_path: Path) -> None:
    times = f"--throughput={throughput(tmp_path / 't.json')}"
    fast, slow = (plan(tmp_path, times, f"--backend={name}") for name in ("persistent", "cudnn"))
    assert slow["plan"]["hours"] > 5 * fast["plan"]["hours"]
    save, recompute = (
        {row["batch_size"]: row["memory_bytes"] for row in plan(tmp_path, f"--policy={policy}")["rows"]}
        for policy in ("save", "recompute")
    )
    assert all(recompute[size] < save[size] for size in save)


def test_a_measured_step_takes_the_place_of_the_assumed_overhead(tmp_path: Path) -> None:
    spec = {"num_layers": 8, "hidden_size": 1152, "audio_seconds": 6.8, "precision": "bf16"}
    compute = [{"batch_size": size, "forward": 0.01, "backward": 0.03, "optimizer": 0.001} for size in (1, 64)]
    step = tmp_path / "measured-1.json"
    step.write_text(json.dumps({"spec": spec, "compute": compute, "device": "a GPU", "started": "2026-11-30"}))
    arguments = (f"--throughput={throughput(tmp_path / 't.json')}", f"--step={step}")
    record = plan(tmp_path, *arguments, "--utterance-seconds=7")
    at_one = next(row for row in record["rows"] if (row["gpus"], row["batch_size"]) == (1, 1))
    # The plan of the measured network itself reproduces its measured compute.
    assert at_one["compute_ms"] / at_one["accumulation"] == pytest.approx(40, rel=1e-3)


def test_measured_samples_cost_hours(tmp_path: Path) -> None:
    curve = [{"global_batch_size": size, "samples_to_target": samples} for size, samples in ((128, 1000), (512, 2000))]
    path = tmp_path / "batch_size.json"
    path.write_text(json.dumps({"curve": curve, "written": "2026-11-30"}))
    free = plan(tmp_path, "--batch-range=512,512")
    paid = plan(tmp_path, "--batch-range=512,512", f"--batch-size-results={path}")
    assert paid["plan"]["hours"] == pytest.approx(2 * free["plan"]["hours"])


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "width"), [("save", 32), ("save", 256), ("recompute", 256)])
def test_memory_is_that_of_a_traced_step_at_any_batch(policy: str, width: int) -> None:
    options = argparse.Namespace(
        num_layers=6,
        hidden_size=width,
        policy=policy,
        precision="bf16",
        optimizer="sgd",
        longest_seconds=4,
        frame_ms=20,
    )
    memory, _, _ = memory_of(options)
    stack = StackOptions(6, width, memory_policy=policy)  # type: ignore[arg-type]
    for size in (1, 32):
        step = StepOptions(stack, batch_size=size, frames=200, precision="bf16-mixed", optimizer="sgd")
        assert memory(size) - WORKSPACE == pytest.approx(predict(step).peak, rel=0.02)


def test_a_plan_is_a_function_too() -> None:
    inputs, decision = library(num_layers=8, gpus=64, gpu_memory_gib=80.0)
    assert decision.best.gpus <= 64
    assert inputs.parameters == parameter_count(8, 1152)
    with pytest.raises(ValueError, match="'gpu' is no option of a plan; the options are backend"):
        library(gpu=64)


@pytest.mark.parametrize(("layers", "width"), [(88, 1152), (8, 256), (6, 128), (3, 64)])
def test_parameters_are_those_of_the_network(layers: int, width: int) -> None:
    with torch.device("meta"):
        network = AcousticNetwork(
            StackOptions(layers, width), 29, FeatureOptions(), FrontEndOptions(), SpecAugmentOptions()
        )
    assert parameter_count(layers, width) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--hidden-size=5000"], "h200.json has widths 256, 512,"),
        (["--backend=cudnn"], "h200.json has no time of cudnn in bfloat16; it has persistent in bfloat16"),
        (["--num-layers=8", "--gpu-memory-gib=0.1"], "A batch of 1 needs"),
        (["--throughput=none.json"], "none.json is not a file; give the JSON that the experiment wrote"),
        (["--batch-size-results=none.json"], "none.json is not a file"),
        (["--step=none.json"], "none.json is not a file"),
        (["--config=none.yaml"], "none.yaml is no file; check the path"),
        (["--config={card}"], "card.yaml:1: layers is no option; did you mean num_layers?"),
        (["--config={value}"], "value.yaml:1: --gpus: 'many' is not a whole number of 1 or more"),
        (["--throughput={rows}"], "lacks rows or peak_tflops"),
        (["--throughput={times}", "--hidden-size=500"], "has widths 1000, 2000 and 500 units lie outside"),
        (
            ["--throughput={times}", "--precision=fp32"],
            "has no time of persistent in float32; it has cudnn in bfloat16",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    (tmp_path / "card.yaml").write_text("layers: 3\n")
    (tmp_path / "value.yaml").write_text("gpus: many\n")
    (tmp_path / "rows.json").write_text("{}")
    names = {"card": "card.yaml", "value": "value.yaml", "rows": "rows.json"}
    paths = {key: tmp_path / name for key, name in names.items()} | {"times": throughput(tmp_path / "t.json")}
    assert main(["plan", f"--output={tmp_path / 'out'}", *(one.format(**paths) for one in arguments)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--batch-range=512"], "is not two whole numbers; write it as 128,512"),
        (["--batch-range=512,128"], "does not ascend"),
        (["--gpus=0"], "is not a whole number of 1 or more"),
        (["--corpus-hours=-1"], "is not a number above 0"),
        (["--interconnect=string"], "--interconnect is string; choose from nvlink,"),
    ],
)
def test_an_option_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["plan", *arguments]) == 2
    assert sentence in capsys.readouterr().err
