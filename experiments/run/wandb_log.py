"""The W&B mirror of a run: offline unless asked, and never what a run dies of.

`--wandb.mode online` (or WANDB_MODE, or a sweep agent's WANDB_SWEEP_ID) sends values out; when the server does not
answer within `INIT_SECONDS` the run says so and goes on offline. One run a job: rank 0 alone knows W&B, and the id is
kept in the run's folder, so a resumed run goes on in the same W&B run. A server that leaves in mid-run costs at most
`FINISH_SECONDS` at its end; what was not sent stays on disk. `metrics.jsonl` and `result.json` are the truth.
"""

import os
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.run.result import Result, write_atomically

INIT_SECONDS = 20.0
FINISH_SECONDS = 60.0
ID_NAME = "wandb_id.txt"
# Names a file that is there once the machine is taken away (`sweeps agents` makes it): a sweep's server sends SIGTERM
# too, to a run that it gives up, and that one is not to be handed out again.
PREEMPTED = "PRNN_PREEMPTED"
# The config is the W&B run's own.
NOT_MIRRORED = ("config", "versions", "plan", "data")


def mode_of(asked: str | None) -> str:
    """What was asked, else WANDB_MODE, else online below a sweep agent, else offline."""
    return asked or os.environ.get("WANDB_MODE") or ("online" if "WANDB_SWEEP_ID" in os.environ else "offline")


def wandb_logger(folder: Path, mode: str, *, project: str, name: str, config: dict[str, Any]) -> Any | None:
    """Lightning's WandbLogger over one W&B run, or None when `mode` is disabled.

    Raises ValueError when wandb is not installed.
    """
    if mode == "disabled":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        import wandb
        from pytorch_lightning.loggers import WandbLogger
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; pip install wandb, or say --wandb.mode disabled") from error
    arguments: dict[str, Any] = {"dir": str(folder), "project": project, "name": name, "config": config, "mode": mode}
    arguments |= {"id": _run_id(folder), "resume": "allow"}
    # Without a limit W&B waits at the end of a run for as long as the server is away.
    ending = {"finish_timeout": FINISH_SECONDS, "finish_timeout_raises": True}
    settings = wandb.Settings(init_timeout=INIT_SECONDS, console="off", **ending)
    try:
        run = wandb.init(settings=settings, **arguments)
    except Exception as error:
        # Whatever stops W&B (no key, no server, a full quota) must not stop a training run.
        said = " ".join(str(error).split())
        if mode == "offline":
            print(f"W&B is left out of this run: {said}", file=sys.stderr)
            return None
        print(f"W&B does not answer, its record is kept offline in {folder / 'wandb'}: {said}", file=sys.stderr)
        # W&B holds the id of a run that it could not begin.
        (folder / ID_NAME).unlink(missing_ok=True)
        return wandb_logger(folder, "offline", project=project, name=name, config=config)
    return WandbLogger(experiment=run)


def close(logger: Any | None, result: Result) -> None:
    """Mirror the result's numbers and end the W&B run with an exit code that tells whether it finished.

    The summary has every number of `result.json` as `result/NAME`: what `sweeps table --wandb` reads.
    """
    if logger is None:
        return
    run = logger.experiment
    finished = result.status == "finished"
    numbers: dict[str, Any] = {"test/wer": result.wer, "test/cer": result.cer, "val/wer": result.val_wer}
    if result.peak_memory_bytes is not None:
        numbers["perf/peak_memory_gib"] = result.peak_memory_bytes / 2**30
    numbers |= {f"result/{name}": value for name, value in asdict(result).items() if name not in NOT_MIRRORED}
    if not finished:
        # A sweep that waits for its metric would wait for ever.
        numbers["val/wer"] = numbers["val/wer"] if numbers["val/wer"] is not None else 1.0
    if result.status == "stopped" and Path(os.environ.get(PREEMPTED, "")).is_file():
        run.mark_preempting()  # W&B hands it out again, and it goes on from its checkpoint
    run.summary.update({"status": result.status, "reason": result.reason} | numbers)
    try:
        run.finish(exit_code=0 if finished else 1)
    except TimeoutError:
        kept = f"wandb sync --include-online {Path(run.dir).parent}"
        print(f"W&B did not take all of this run within {FINISH_SECONDS:.0f} s; send it later: {kept}", file=sys.stderr)


def _run_id(folder: Path) -> str:
    """The id that a sweep agent handed out, else the folder's own; the folder remembers it either way."""
    path = folder / ID_NAME
    given = os.environ.get("WANDB_RUN_ID")
    if given or not path.exists():
        write_atomically(path, (given or secrets.token_hex(4)) + "\n")
    return path.read_text(encoding="utf-8").strip()
