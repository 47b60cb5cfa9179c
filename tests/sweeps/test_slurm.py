"""The job array: bash reads it, each task runs its own point, and what SLURM is told is right. No SLURM is needed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from sweeps.planning import Planned
from sweeps.slurm import submit, write_array

POINTS = [
    Planned(f"layers-{depth}", {"model.num_layers": depth}, ["--config", json.dumps({"a b": "it's"})], {}, "0" * 64)
    for depth in (8, 24)
]


def test_each_task_runs_its_own_point(tmp_path: Path) -> None:
    script = write_array(
        tmp_path / "out dir", "Depth, wide", POINTS, nodes=2, gpus=8, time="4:00:00", more=["partition=gpu"]
    )
    text = script.read_text()
    for line in (
        "--job-name=Depth--wide", "--array=0-1", "--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8",
        "--time=4:00:00", "--requeue", "--partition=gpu",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in text
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$MASTER_PORT" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    said = []
    for task in ("0", "1"):
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "41"}
        environment["SLURM_ARRAY_TASK_ID"] = task
        done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True)
        said.append(done.stdout.splitlines())
    assert said[0][0] != said[1][0], "two tasks share a port"
    for words, point in zip(said, POINTS, strict=True):
        assert words[2:5] == ["-m", "experiments", "fit"]
        assert words[5:7] == ["--config", '{"a b": "it\'s"}']
        assert words[8] == str(tmp_path.resolve() / "out dir" / "runs" / f"{point.name}-00000000")
        assert words[9:] == ["--trainer.num_nodes=2", "--trainer.devices=8"]


def test_what_cannot_be_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--nodes 0 --gpus 1: a job has at least one of each"):
        write_array(tmp_path, "x", POINTS, nodes=0, gpus=1, time="1:00")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="there is no sbatch here"):
        submit(tmp_path / "array.sh")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ValueError, match=r"sbatch refused .*invalid partition"):
        submit(tmp_path / "array.sh")
