"""FlashRNN as a rival: what is mended in its copy, and what a table says where it is not timed; no GPU here."""

from pathlib import Path

import pytest
import torch

from experiments.throughput import command as throughput
from experiments.throughput import flashrnn_mend, rivals
from experiments.throughput.flashrnn_mend import DROPPED, mend
from experiments.throughput.rivals import Problem, RivalFailedError, unavailable

CPU = torch.device("cpu")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Lines of the kind that the mends look for, in the package's own places."""
    inner = tmp_path / "installed" / "flashrnn" / "flashrnn"
    (inner / "gpu_info").mkdir(parents=True)
    kept = "d[0] = prop.clockRateOfAnother; d[1] = prop.name;\n"
    (inner / "gpu_info/gpu_info.cc").write_text(
        kept + "".join(f"d[2] =\n    prop.{name}; // {name}\n" for name in DROPPED)
    )
    (inner / "cuda_init.py").write_text("def load():\n    # wait\n    time.sleep(random.random() * 10)\n    return 1\n")
    return inner.parent


def test_the_copy_is_mended_and_the_package_left_alone(package, tmp_path):
    copy = mend(package, tmp_path / "mended")
    text = (copy / "flashrnn/gpu_info/gpu_info.cc").read_text()
    assert text.count("    0; // ") == len(DROPPED) == 8
    assert "prop.clockRateOfAnother" in text
    assert (copy / "flashrnn/cuda_init.py").read_text() == "def load():\n    # wait\n    return 1\n"
    assert "prop.clockRate;" in (package / "flashrnn/gpu_info/gpu_info.cc").read_text()


def test_another_version_is_refused(package, tmp_path):
    (package / "flashrnn/cuda_init.py").write_text("def load():\n    return 1\n")
    with pytest.raises(ValueError, match=r"0 times and not once; install flashrnn==1\.0\.8"):
        mend(package, tmp_path / "mended")


def test_the_command_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["flashrnn_mend", str(tmp_path)])
    monkeypatch.setattr(flashrnn_mend.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        flashrnn_mend.main()
    assert "pip install flashrnn==1.0.8 einops ninja" in capsys.readouterr().err


def test_each_reason_is_told(monkeypatch):
    monkeypatch.setattr(rivals.shutil, "which", lambda tool: None if tool == "nvcc" else tool)
    problem = Problem.draw(2, 3, 8, torch.float32, CPU)
    told = " ".join(rivals._flashrnn_reasons(problem))
    for part in ("not installed", "nvcc is not on PATH", "bfloat16, not torch.float32", "1152 x 4 and 1152 x 16"):
        assert part in told
    assert unavailable("flashrnn", problem) == ["flashrnn runs on GPUs only and x is on the CPU"]


def test_a_build_that_fails_is_a_reason_in_the_table(monkeypatch):
    def broken(problem):
        raise RuntimeError("Error building extension 'elman_f':\nnvcc fatal: no such option")

    monkeypatch.setattr(rivals, "_flashrnn_calls", broken)
    problem = Problem.draw(2, 1, 8, torch.float32, CPU)
    with pytest.raises(RivalFailedError, match="did not build or run: nvcc fatal: no such option"):
        rivals.rival("flashrnn", problem)
    monkeypatch.setattr(rivals, "unavailable", lambda backend, problem: [])
    rows = list(
        throughput.measure(8, 1, 2, "float32", ["reference", "flashrnn"], ["forward"], 1, CPU, {"float32": 1.0})
    )
    by_backend = {row["backend"]: row for row in rows}
    assert by_backend["flashrnn"]["us_per_step"] is None
    assert "nvcc fatal" in by_backend["flashrnn"]["reason"]
    assert by_backend["reference"]["us_per_step"] > 0
