"""A run of two ranks as a cluster starts it - torchrun, or a SLURM job of an array - is one run, here and in W&B.

SLURM is stood in for: `srun` starts one process a task with the variables that SLURM sets, `scontrol requeue` is noted.
The ranks, their gloo group, Lightning's SLURM environment and its signals are real.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.__main__ import main
from tests.sweeps.small_card import small_card
from tests.sweeps.test_sweeps import LIGHTNINGS_OWN

ROOT = Path(__file__).parents[2]
SRUN = """\
#!/bin/sh
export SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_NODEID=0
export SLURM_JOB_NAME=sweep SLURM_NODELIST=localhost SLURM_STEP_NODELIST=localhost SLURM_STEPID=0
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & first=$!
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" & second=$!
# As srun, it passes a signal on to the tasks and ends with the highest of their exit codes.
trap 'kill -TERM $first $second' TERM
result() {
  code=0; wait $1 || code=$?
  while [ $code -gt 128 ] && kill -0 $1 2>/dev/null; do code=0; wait $1 || code=$?; done
}
result $first; one=$code; result $second; two=$code
[ $one -gt $two ] && exit $one || exit $two
"""


def fit_card(folder: Path, corpus: Path, **trainer: Any) -> Path:
    small = {"accelerator": "cpu", "max_epochs": 2} | trainer
    return small_card(folder, corpus, trainer=small, wandb={"mode": "offline"}, checkpoint_minutes=0.0)


def environment_of(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "SLURM"))}
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | more


def wandb_runs(folder: Path) -> list[str]:
    """Ids of the W&B runs that a run's folder holds, one an offline record."""
    return [path.name.rpartition("-")[2] for path in sorted(folder.glob("wandb/offline-run-*"))]


def validated(folder: Path) -> list[int]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["epoch"] for line in lines if "val/wer" in line]


@pytest.mark.slow
def test_torchrun_is_one_run(tmp_path: Path, synth_corpus: Path) -> None:
    card, output = fit_card(tmp_path, synth_corpus), tmp_path / "run"
    fit = ["-m", "experiments", "fit", f"--config={card}", "--trainer.devices=2", "--trainer.strategy=ddp"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *fit]
    command += ["--data.per_device_batch_size=4", f"--output={output}"]
    done = subprocess.run(command, cwd=ROOT, env=environment_of(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((output / "result.json").read_text())
    assert (result["status"], result["world_size"]) == ("finished", 2)
    assert len(wandb_runs(output)) == 1
    assert validated(output) == [0, 1]


@pytest.mark.slow
@pytest.mark.filterwarnings(LIGHTNINGS_OWN)
def test_a_job_of_an_array_that_is_stopped_is_queued_again_and_goes_on_in_the_same_wandb_run(
    tmp_path: Path, synth_corpus: Path
) -> None:
    epochs = 20
    card, root = fit_card(tmp_path, synth_corpus, strategy="ddp", max_epochs=epochs), tmp_path / "sweep"
    content = {
        "method": "grid",
        "command": ["${interpreter}", "-m", "experiments", "fit", "--config", str(card), "--config", "${args_json}"],
        "parameters": {"model.num_layers": {"values": [1, 2]}, "data.per_device_batch_size": {"value": 4}},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    assert main(["slurm", str(tmp_path / "sweep.yaml"), f"--output={root}", "--nodes=1", "--gpus=2"]) == 0
    queued = tmp_path / "queued"
    for name, text in (("srun", SRUN), ("scontrol", f'#!/bin/sh\necho "$@" >> {queued}\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    task = {"SLURM_JOB_ID": "41", "SLURM_JOBID": "41", "SLURM_ARRAY_TASK_ID": "0"}
    environment = environment_of(PATH=f"{tmp_path}:{os.environ['PATH']}", **task)
    script = ["bash", str(root / "slurm" / "array.sh")]
    with subprocess.Popen(script, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as job:
        [folder] = wait_for(lambda: list(root.glob("runs/*")))
        wait_for(lambda: (folder / "metrics.jsonl").exists() and len(validated(folder)) >= 2)
        # As SLURM's --signal: to the step, not to the batch script.
        os.kill(srun_of(job.pid), signal.SIGTERM)
        _, said = job.communicate(timeout=100)
    assert job.returncode == 4, said
    assert queued.read_text() == "requeue 41\n"
    assert json.loads((folder / "result.json").read_text())["status"] == "stopped"
    assert len(validated(folder)) < epochs
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["world_size"], result["config"]["model"]["num_layers"]) == ("finished", 2, 1)
    assert validated(folder) == list(range(epochs))
    first, second = wandb_runs(folder)
    assert first == second == (folder / "wandb_id.txt").read_text().strip()
    assert queued.read_text() == "requeue 41\n", "one that has finished is not queued again"


def srun_of(job: int) -> int:
    """Process id of the `srun` that the job's script has started."""
    for pid in Path(f"/proc/{job}/task/{job}/children").read_text().split():
        if "srun" in Path(f"/proc/{pid}/cmdline").read_text():
            return int(pid)
    raise AssertionError("no srun")


def wait_for(look: Any, seconds: float = 200.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return found
