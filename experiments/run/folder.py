"""A run's folder: found again when the run is asked for twice, gone on with after a kill, never shared by two runs.

    FOLDER/run.json               identity, commit and start; written when the run begins
    FOLDER/config.yaml            the resolved config
    FOLDER/metrics.jsonl          every logged value, appended
    FOLDER/checkpoints/           best.ckpt (by val/wer) and last.ckpt
    FOLDER/curves.json            decimated curves, at the end
    FOLDER/result.json            the end, whatever it was
    FOLDER/previous-1/            what a run of another commit, or on other data, left here before

`--output` names the folder itself; without it the folder is `runs/NAME-sSEED-HASH`, one for each identity.
"""

import fcntl
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data.fingerprint import contents_of, difference
from data.manifest import ManifestError
from experiments.run.result import read_result, summary, write_atomically

DONE = ("finished", "diverged")
DEFAULT_ROOT = "runs"
BEST = "runs/NAME/checkpoints/best.ckpt"


@dataclass(frozen=True)
class RunFolder:
    """A run to train (`finished` is None, `resume_from` may name a checkpoint) or one that was found done."""

    path: Path
    config_hash: str
    commit: str | None
    finished: dict[str, Any] | None = None
    resume_from: Path | None = None
    # What the user should be told: found, gone on with, or put aside, and why.
    messages: tuple[str, ...] = ()
    put_aside: bool = False

    @property
    def checkpoints(self) -> Path:
        """Where best.ckpt and last.ckpt lie."""
        return self.path / "checkpoints"


def locate(
    config_hash: str,
    commit: str | None,
    *,
    name: str,
    seed: int,
    output: str | None,
    root: str | None = None,
    resume: str = "auto",
    reuse_commit: bool = False,
    data: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Decide what to do with a run, without writing anything (all ranks decide alike).

    `resume`: `auto` goes on from last.ckpt, `never` starts again, anything else is the path of a checkpoint. `data`:
    the settings that name the manifests, which are read again for a run that is done; None where they are not known.
    Raises ValueError when the folder holds another run, and when the named checkpoint is missing.
    """
    path = Path(output) if output else Path(root or DEFAULT_ROOT) / f"{name}-s{seed}-{config_hash[:10]}"
    begun, result = _begun(path), read_result(path)
    owner = result or begun
    if owner is None and path.exists() and not path.is_dir():
        raise ValueError(f"--output {path} is a file; name a folder")
    if owner is not None and owner["config_hash"] != config_hash and _failed_at_once(path, result):
        # A mistake that ended a run before its first step must not keep the folder from its correction.
        told = f"{path} holds another run that never trained: put aside"
        return RunFolder(path, config_hash, commit, messages=(told,), put_aside=True)
    if owner is not None and owner["config_hash"] != config_hash:
        raise ValueError(
            f"{path} holds another run (config hash {owner['config_hash'][:10]}, this one is {config_hash[:10]}); "
            "name another --output or delete that folder"
        )
    if resume not in ("auto", "never"):
        if not Path(resume).is_file():
            remedy = of_folder(Path(resume)) or "say auto, never or the path of a checkpoint"
            raise ValueError(f"--resume {resume} is no file; {remedy}")
        if not is_whole(Path(resume)):
            raise ValueError(f"--resume {resume} is no checkpoint, or half of one; name another, or say never")
        return RunFolder(path, config_hash, commit, None, Path(resume), (f"goes on from {resume}",))
    if owner is None:
        return RunFolder(path, config_hash, commit)
    if resume == "never":
        return RunFolder(path, config_hash, commit, messages=("starts again (--resume never)",), put_aside=True)
    other_commit = owner.get("commit") != commit
    if result is not None and result["status"] in DONE:
        if not other_commit or reuse_commit:
            changed, compared = _compare(result.get("data"), data)
            if changed:
                told = f"{path} was {result['status']} on other data ({changed}): trained again"
                return RunFolder(path, config_hash, commit, messages=(told,), put_aside=True)
            told = f"already {summary(result, path)}{compared}"
            return RunFolder(path, config_hash, commit, result, messages=(told,))
        told = (
            f"{path} was {result['status']} under commit {_short(result.get('commit'))}, this is {_short(commit)}: "
            "trained again (--reuse-commit takes it as it is)"
        )
        return RunFolder(path, config_hash, commit, messages=(told,), put_aside=True)
    last = path / "checkpoints" / "last.ckpt"
    if not last.exists():
        return RunFolder(path, config_hash, commit, messages=(f"{path} has no checkpoint yet: starts from step 0",))
    if not is_whole(last):
        raise ValueError(f"{last} is half a checkpoint; say --resume never to train that run again from step 0")
    told = f"goes on from {last}"
    if other_commit:
        told += f", begun under commit {_short(owner.get('commit'))}"
    return RunFolder(path, config_hash, commit, None, last, (told,))


def is_whole(checkpoint: Path) -> bool:
    """Whether the file can be a checkpoint: torch writes zip archives, whose directory comes last."""
    return zipfile.is_zipfile(checkpoint)


def of_folder(path: Path) -> str | None:
    """Which checkpoint to name in place of a run's folder, as the end of a sentence; None where `path` is no folder."""
    if not path.is_dir():
        return None
    folder = path if path.name == "checkpoints" else path / "checkpoints"
    there = [folder / name for name in ("best.ckpt", "last.ckpt") if (folder / name).is_file()]
    if not there:
        return f"it is a folder without checkpoints/best.ckpt; name a checkpoint that `fit` wrote, as {BEST}"
    return f"it is a run's folder, name its checkpoint {there[0]}"


def begin(run: RunFolder) -> None:
    """Make the folder, put an older run's files aside, write `run.json`. Rank 0 only."""
    run.path.mkdir(parents=True, exist_ok=True)
    if run.put_aside:
        _put_aside(run.path)
    # A result is a run's end: one that is gone on with has none until it ends again.
    (run.path / "result.json").unlink(missing_ok=True)
    started = {
        "config_hash": run.config_hash,
        "commit": run.commit,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomically(run.path / "run.json", json.dumps(started) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder alone; the lock dies with the process. Raises ValueError when another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{folder} is being trained by another process; wait for it or name another --output"
            ) from error
        yield


def _compare(recorded: Mapping[str, Any] | None, data: Mapping[str, Any] | None) -> tuple[str, str]:
    """What has changed of the data of a run that is done; and what to add where that cannot be known."""
    if data is None:
        return "", ""
    if recorded is None:
        return "", "; whether its data is still the same is not known: it was trained before that was recorded"
    try:
        return difference(recorded, contents_of(data)), ""
    except ManifestError as error:
        return "", f"; whether its data is still the same cannot be told: {error}"


def _failed_at_once(folder: Path, result: dict[str, Any] | None) -> bool:
    trained = (folder / "metrics.jsonl").exists() or (folder / "checkpoints").exists()
    return result is not None and result["status"] == "failed" and not trained


def _put_aside(folder: Path) -> None:
    number = 1
    while (aside := folder / f"previous-{number}").exists():
        number += 1
    aside.mkdir()
    for item in list(folder.iterdir()):
        # The runner's log is open while this runs, the lock is held, and older runs stay where they are.
        if item.name not in ("log.txt", ".lock") and not item.name.startswith("previous-"):
            item.rename(aside / item.name)


def _begun(folder: Path) -> dict[str, Any] | None:
    path = folder / "run.json"
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); delete the folder and start the run again") from error


def _short(commit: str | None) -> str:
    return "unknown" if commit is None else commit[:8] + ("-dirty" if commit.endswith("-dirty") else "")
