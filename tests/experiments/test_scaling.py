"""`python -m experiments scaling`: the model against made-up measurements it must know, the files, and real ranks."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.scaling import model as scaling_model
from experiments.scaling.communication import Message, all_reduce_seconds, fit
from experiments.scaling.interconnects import preset
from experiments.scaling.step_model import Overlap, buckets_of, step_time
from tests.experiments.test_plan import throughput

STUDIES = Path(__file__).parents[2] / "experiments" / "configs" / "studies"
HDR = preset("ib-hdr")
SIZES = (1, 2, 4, 8, 16, 32)
SPEC = {"num_layers": 48, "hidden_size": 1152, "audio_seconds": 7.0, "precision": "bf16", "batch_sizes": list(SIZES)}


def measured(devices: int, overlap: Overlap | None = None) -> dict[str, Any]:
    """What `scaling.ranks` would write where the model were the truth: 200 MB of gradients, compute linear in batch."""
    gradients = [{"bytes": 2_000_000, "ready": (i + 1) / 100} for i in range(100)]
    compute = [
        {"batch_size": size, "forward": 0.02 + 0.004 * size, "backward": 0.04 + 0.008 * size, "optimizer": 0.005}
        for size in SIZES
    ]
    messages = [
        {"bytes": size, "seconds": 2e-4 + size / 2e9, "low": 1e-4, "high": 1.0} for size in (4096, 2**20, 2**25)
    ]
    record = {
        "spec": SPEC,
        "world_size": devices,
        "library": "gloo",
        "device": "a made-up device",
        "started": "2026-11-30T12:00:00+00:00",
        "gradients": gradients,
        "compute": compute,
        "all_reduce": messages if devices > 1 else [],
        "step": [],
    }
    table = scaling_model.compute_of(record)
    net = fit([Message(int(m["bytes"]), 2, m["seconds"]) for m in messages], HDR)
    buckets = buckets_of([(2_000_000, (i + 1) / 100) for i in range(100)])
    for size in SIZES:
        seconds = step_time(
            table, size, buckets, lambda s: all_reduce_seconds(s, devices, net), overlap=overlap or Overlap()
        ).total
        record["step"].append({"batch_size": size, "seconds": seconds, "low": seconds, "high": seconds})
    return record


@pytest.mark.parametrize("overlap", [Overlap(), Overlap(0.5, 0.0), Overlap(0.3, 0.004)])
def test_a_left_out_step_is_predicted_where_the_model_is_the_truth(overlap: Overlap) -> None:
    predictions = scaling_model.held_out_steps(measured(2, overlap), HDR)
    assert [one.batch_size for one in predictions] == list(SIZES[1:-1])
    assert max(abs(one.error) for one in predictions) < 1e-6


def test_a_left_out_step_is_not_known_to_its_own_prediction() -> None:
    record = measured(2)
    record["compute"][3]["backward"] *= 10
    record["step"][3]["seconds"] *= 10
    spoilt = next(one for one in scaling_model.held_out_steps(record, HDR, [8]))
    assert spoilt.predicted == pytest.approx(measured(2)["step"][3]["seconds"], rel=1e-6)
    assert spoilt.error < -0.8


def test_strong_scaling_runs_out_of_batch_and_weak_scaling_does_not() -> None:
    model = scaling_model.fit_model(measured(1), HDR)
    counts = [2**power for power in range(11)]
    strong = scaling_model.strong(model, HDR, SPEC, 360, counts, 512)
    assert [row.devices for row in strong] == counts[:10]
    assert all(row.global_batch_size == 512 for row in strong)
    assert strong[0].accumulation == 16
    assert strong[0].efficiency == 1.0
    assert all(row.batch_size <= 32 for row in strong)
    assert strong[-1].efficiency < strong[-3].efficiency < 1
    weak = scaling_model.weak(model, HDR, SPEC, 360, counts, 4)
    assert [row.batch_size for row in weak] == [4] * 11
    assert 0.5 < weak[-1].efficiency <= weak[1].efficiency <= 1


def test_flops_count_both_matrices_of_a_layer_three_times() -> None:
    assert scaling_model.step_flops({"hidden_size": 10, "num_layers": 2}, 3, 5) == 3 * 4 * 10 * 10 * 2 * 3 * 5


@pytest.fixture
def files(tmp_path: Path) -> str:
    for devices in (1, 2):
        (tmp_path / f"measured-{devices}.json").write_text(json.dumps(measured(devices)))
    return ",".join(str(tmp_path / f"measured-{devices}.json") for devices in (1, 2))


def test_the_files_hold_measured_and_modelled_points(tmp_path: Path, files: str) -> None:
    output = tmp_path / "out"
    arguments = [f"--measured={files}", f"--output={output}", "--interconnects=ib-hdr,ethernet-25"]
    assert main(["scaling", *arguments]) == 0
    record = json.loads((output / "scaling.json").read_text())
    assert {row["source"] for row in record["rows"]} == {"measured", "model"}
    assert {row["devices"] for row in record["rows"] if row["source"] == "model"} == {2**power for power in range(11)}
    assert [one["name"] for one in record["interconnects"]] == ["ib-hdr", "ethernet-25"]
    assert max(abs(one["error"]) for one in record["errors"]) < 1e-6
    rows = list(csv.DictReader(io.StringIO((output / "table.csv").read_text())))
    assert len(rows) == len(record["rows"])
    assert {"mode", "devices", "batch_size", "step_ms", "tflops", "efficiency", "source"} <= set(rows[0])
    page = (output / "report.html").read_text()
    assert "The smallest per-GPU batches" in page
    assert "Assumptions" in page


@pytest.mark.parametrize("card", sorted(STUDIES.glob("scaling*.yaml")), ids=lambda path: path.stem)
def test_each_card_extends_what_was_measured(tmp_path: Path, files: str, card: Path) -> None:
    assert main(["scaling", f"--config={card}", f"--measured={files}", f"--output={tmp_path / 'out'}"]) == 0
    record = json.loads((tmp_path / "out" / "scaling.json").read_text())
    assert len(record["interconnects"]) >= 3
    assert len({(row["mode"], row["interconnect"]) for row in record["rows"] if row["source"] == "model"}) >= 6


def test_the_layers_of_a_throughput_file_make_a_step(tmp_path: Path, files: str) -> None:
    times = throughput(tmp_path / "throughput.json")
    arguments = [f"--measured={files}", f"--compute={times}", "--hidden-size=1000", "--num-layers=48", "--overhead=2"]
    assert main(["scaling", *arguments, "--precision=bf16", f"--output={tmp_path / 'out'}"]) == 0
    record = json.loads((tmp_path / "out" / "scaling.json").read_text())
    row = next(r for r in record["rows"] if (r["source"], r["mode"], r["devices"]) == ("model", "weak", 1))
    frames, gemm = record["frames"], 6 * 1000**2 * 4 * record["frames"] / (0.5 * 700e12)
    assert row["compute_ms"] == pytest.approx(2 * 48 * (3e-6 * frames + gemm) * 1e3)
    assert "a GPU, persistent layers x 2 (assumption)" in record["compute_source"]


def test_more_devices_are_predicted_from_fewer(tmp_path: Path) -> None:
    predictions = scaling_model.held_out_devices([measured(devices) for devices in (1, 2, 4)], HDR)
    assert [(one.devices, one.batch_size) for one in predictions] == [(4, size) for size in SIZES]
    assert scaling_model.held_out_devices([measured(1), measured(2)], HDR) == []


def test_one_device_alone_still_extends_and_says_that_nothing_was_fitted(tmp_path: Path, files: str) -> None:
    assert main(["scaling", f"--measured={files.split(',')[0]}", f"--output={tmp_path / 'out'}"]) == 0
    record = json.loads((tmp_path / "out" / "scaling.json").read_text())
    assert record["fit"] is None
    assert record["errors"] == record["all_reduce"] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--measured=none.json"], "none.json is not a file; give the JSON that the experiment wrote"),
        (["--measured={good}", "--compute=none.json"], "none.json is not a file"),
        (
            ["--measured={good}", "--compute={times}", "--hidden-size=9", "--precision=bf16"],
            "lie outside; measure them by",
        ),
        (["--measured={half}"], "is not JSON"),
        (["--measured={empty}"], "lacks spec, world_size"),
        (["--accelerator=cpu", "--devices=4096"], "cores are present; give at most"),
        (["--accelerator=cuda"], "no CUDA device is visible; use --accelerator cpu"),
    ],
)
def test_a_mistake_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    import torch

    if "--accelerator=cuda" in arguments and torch.cuda.is_available():
        pytest.skip("runs where there is no CUDA device: asking for one is no mistake here")
    (tmp_path / "half.json").write_text('{"spec": {')
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "good.json").write_text(json.dumps(measured(1)))
    paths = {name: tmp_path / f"{name}.json" for name in ("half", "empty", "good", "times")}
    throughput(paths["times"])
    assert main(["scaling", f"--output={tmp_path / 'out'}", *(one.format(**paths) for one in arguments)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


@pytest.mark.slow
def test_two_real_ranks_are_measured_and_left_out_steps_are_predicted(tmp_path: Path) -> None:
    """How far off they are is another test's (`make timings`)."""
    arguments = ["--accelerator=cpu", "--devices=2", "--num-layers=4", "--hidden-size=384", "--audio-seconds=1.5"]
    assert main(["scaling", *arguments, "--batch-sizes=1,2,4,8", "--rounds=3", f"--output={tmp_path}"]) == 0
    record = json.loads((tmp_path / "scaling.json").read_text())
    steps = {one["batch_size"]: one["seconds"] for one in record["measured"][0]["step"]}
    left_out = [one for one in record["errors"] if one["held_out"]]
    assert [one["batch_size"] for one in left_out] == [2, 4]
    for one in left_out:
        assert one["measured"] == pytest.approx(steps[one["batch_size"]])
        assert one["error"] == pytest.approx(one["predicted"] / one["measured"] - 1)
    two = record["measured"][0]
    assert two["world_size"] == 2
    assert two["library"] == "gloo"
    # The gradient's bytes reach the buckets whole, and each is ready within the backward.
    assert sum(record["fit"]["bucket_bytes"]) == two["gradient_bytes"] == sum(g["bytes"] for g in two["gradients"])
    assert all(0 <= g["ready"] <= 1 for g in two["gradients"])


@pytest.mark.idle
@pytest.mark.slow
def test_two_real_ranks_left_out_steps_are_predicted_within_ten_percent(tmp_path: Path) -> None:
    arguments = ["--accelerator=cpu", "--devices=2", "--num-layers=4", "--hidden-size=384", "--audio-seconds=1.5"]
    worst = []
    for attempt in range(3):
        output = tmp_path / str(attempt)
        assert main(["scaling", *arguments, "--batch-sizes=1,2,4,8", "--rounds=9", f"--output={output}"]) == 0
        errors = json.loads((output / "scaling.json").read_text())["errors"]
        worst.append(max(abs(one["error"]) for one in errors if one["held_out"]))
        if worst[-1] <= 0.1:
            break
    assert worst[-1] <= 0.1, worst


@pytest.mark.slow
def test_a_rank_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--accelerator=cpu", "--devices=1", "--backend=persistent", "--batch-sizes=1", "--rounds=1"]
    assert main(["scaling", *arguments, f"--output={tmp_path}"]) == 2
    assert "measuring on 1 devices failed:" in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "measured-1.log").stat().st_size > 0
