"""A stand-in for one training run, for the tests of the runner: no torch, the same folder, a checkpoint every epoch.

    study_run.py --output FOLDER [--epochs N] [--seconds S] [--scale X] [--behave well|fail|diverge|die-once|die]

Each epoch appends one line to `metrics.jsonl` and renames `last.txt` (its checkpoint) into place; a second start goes
on from there. `die-once` kills itself after its second epoch, `die` after its first of every start.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

from experiments.run.result import Result

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--seconds", type=float, default=0.05)
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--behave", default="well")
options = parser.parse_args()

folder = options.output
folder.mkdir(parents=True, exist_ok=True)
checkpoint = folder / "last.txt"
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
(folder / "pids.txt").open("a").write(f"{os.getpid()} {os.getppid()}\n")
result = Result("study-run", {"seed_everything": 0}, "0" * 64, 0)


def stop(number: int, frame: object) -> None:
    """A run that is asked to end says so."""
    result.status, result.reason = "stopped", "SIGTERM"
    result.write(folder)
    raise SystemExit(4)


signal.signal(signal.SIGTERM, stop)
if options.behave == "fail":
    print("  File somewhere")
    raise ValueError("num_layers is 0; give at least 1.")
for epoch in range(first, options.epochs):
    time.sleep(options.seconds)
    with (folder / "metrics.jsonl").open("a") as file:
        line = {
            "step": epoch,
            "epoch": epoch,
            "train/loss": 9.0 / (epoch + 1),
            "val/wer": options.scale * 0.5 / (epoch + 1),
        }
        file.write(json.dumps(line | {"perf/audio_seconds_per_second": 100.0}) + "\n")
    aside = folder / "last.txt.new"
    aside.write_text(str(epoch + 1))
    aside.replace(checkpoint)
    if options.behave == "die" or (options.behave == "die-once" and epoch == 1):
        os.kill(os.getpid(), signal.SIGKILL)
if options.behave == "diverge":
    result.status, result.reason = "diverged", "loss 99 above twice its first-100-step mean 40"
else:
    result.status, result.wer, result.errors, result.words = "finished", 0.1, 10, 100
result.write(folder)
print(json.dumps({name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_PORT")}))
