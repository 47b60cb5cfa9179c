"""W&B mirrors a run and never stops one."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from experiments.run import wandb_log
from experiments.run.result import Result
from experiments.run.wandb_log import ID_NAME, close, mode_of


class StandIn(ModuleType):
    """Of the wandb package: remembers what `init` was asked, and fails in the modes it is told to."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        super().__init__("wandb")
        self.failing = failing
        self.asked: list[dict[str, Any]] = []

    def Settings(self, **options: Any) -> dict[str, Any]:  # noqa: N802 - wandb's own name
        return options

    def init(self, **options: Any) -> Any:
        self.asked.append(options)
        if options["mode"] in self.failing:
            raise RuntimeError("no such host\nretrying")
        return SimpleNamespace(id=options.get("id"))


@pytest.fixture
def logger_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`wandb_logger` over a stand-in; the logger is the bare W&B run."""
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setattr("pytorch_lightning.loggers.WandbLogger", lambda experiment: experiment)

    def make(wandb: StandIn, mode: str) -> Any:
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        return wandb_log.wandb_logger(tmp_path, mode, project="p", name="n", config={"seed_everything": 0})

    return make


@pytest.mark.parametrize(
    ("asked", "environment", "mode"),
    [
        (None, {}, "offline"),
        ("online", {}, "online"),
        (None, {"WANDB_MODE": "online"}, "online"),
        (None, {"WANDB_SWEEP_ID": "s"}, "online"),
        ("disabled", {"WANDB_MODE": "online", "WANDB_SWEEP_ID": "s"}, "disabled"),
    ],
)
def test_offline_unless_asked(
    asked: str | None, environment: dict[str, str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_SWEEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert mode_of(asked) == mode


def test_disabled_does_not_even_import_it(logger_of: Any) -> None:
    wandb = StandIn()
    assert logger_of(wandb, "disabled") is None
    assert wandb.asked == []


def test_a_resumed_run_goes_on_in_the_same_wandb_run(logger_of: Any, tmp_path: Path) -> None:
    wandb = StandIn()
    first, second = logger_of(wandb, "offline"), logger_of(wandb, "offline")
    assert first.id == second.id == (tmp_path / ID_NAME).read_text().strip()
    assert wandb.asked[0]["settings"]["init_timeout"] <= 20


def test_a_resumed_run_of_an_agent_goes_on_in_the_run_that_the_agent_names(
    logger_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = StandIn()
    monkeypatch.setenv("WANDB_RUN_ID", "run7")
    logger_of(wandb, "offline")
    assert (tmp_path / ID_NAME).read_text().strip() == "run7"
    monkeypatch.delenv("WANDB_RUN_ID")
    logger_of(wandb, "offline")
    assert [(asked["id"], asked["resume"]) for asked in wandb.asked] == [("run7", "allow")] * 2


def test_a_server_that_does_not_answer_leaves_an_offline_record(
    logger_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = StandIn(failing=("online",))
    assert logger_of(wandb, "online") is not None
    online, offline = wandb.asked
    assert offline["mode"] == "offline"
    assert offline["id"] != online["id"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "offline" in line


def test_a_wandb_that_cannot_even_write_is_left_out(logger_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert logger_of(StandIn(failing=("online", "offline")), "online") is None
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_without_wandb_the_remedy_is_named(logger_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"--wandb\.mode disabled"):
        wandb_log.wandb_logger(tmp_path, "offline", project="p", name="n", config={})


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("diverged", 1), ("failed", 1)])
def test_the_end_of_a_run_is_told_with_a_metric_for_the_sweep(status: Any, code: int) -> None:
    summary: dict[str, Any] = {}
    ended: list[int] = []
    run = SimpleNamespace(summary=summary, finish=lambda exit_code: ended.append(exit_code))
    result = Result("n", {}, "0" * 64, 0, status=status, val_wer=0.2 if status == "finished" else None)
    result.peak_memory_bytes, result.words = 2**29, 477
    close(SimpleNamespace(experiment=run), result)
    assert ended == [code]
    assert (summary["result/words"], summary["result/config_hash"]) == (477, "0" * 64)
    assert summary["perf/peak_memory_gib"] == 0.5
    assert "result/config" not in summary
    assert summary["status"] == status
    assert summary["val/wer"] == (0.2 if status == "finished" else 1.0)


def test_a_server_that_left_holds_a_run_no_longer_than_a_minute(
    logger_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def finish(exit_code: int) -> None:
        raise TimeoutError

    wandb = StandIn()
    logger_of(wandb, "online")
    assert 0 < wandb.asked[0]["settings"]["finish_timeout"] <= 60
    assert wandb.asked[0]["settings"]["finish_timeout_raises"]
    run = SimpleNamespace(summary={}, finish=finish, dir="runs/a/wandb/run-1/files")
    close(SimpleNamespace(experiment=run), Result("n", {}, "0" * 64, 0, status="finished"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("send it later: wandb sync --include-online runs/a/wandb/run-1")
