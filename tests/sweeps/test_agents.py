"""The real W&B agent, several of them, against a stand-in of W&B's server: what reaches `fit`, and what is left behind.

What the stand-in covers and does not is told in `wandb_stand_in.py`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps.sweep_file import read_sweep
from tests.sweeps.small_card import small_card
from tests.sweeps.wandb_stand_in import StandIn

ROOT = Path(__file__).parents[2]
ECHO = (
    "import json, os, sys; "
    "print(json.dumps([sys.argv[1:], {k: os.environ.get(k) for k in "
    "('MASTER_PORT', 'OMP_NUM_THREADS', 'WANDB_SWEEP_ID', 'WANDB_RUN_ID')}]), "
    "file=open(os.environ['WANDB_RUN_ID'] + '.said', 'w'))"
)
POINTS: list[dict[str, Any]] = [
    {"model.num_layers": 1, "model.skip_span": None},
    {"model.num_layers": 2, "model.skip_span": 1},
    {"model.num_layers": 1, "model.skip_span": 1, "data.sorted_first_epoch": False},
]


@pytest.fixture
def serving() -> Iterator[list[StandIn]]:
    servers: list[StandIn] = []
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()
        assert server.unknown == [], "the agent asked for what the stand-in does not cover"


def agents_of(server: StandIn, folder: Path, jobs: int = 1, **variables: str) -> subprocess.Popen[str]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ,
        "WANDB_BASE_URL": server.url,
        "WANDB_API_KEY": "0" * 40,
        "WANDB_DIR": str(folder),
        "WANDB_MODE": "offline",
        "HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        **variables,
    }
    command = [sys.executable, "-m", "sweeps", "agents", "us/project/stand-in", f"--jobs={jobs}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)


def agents(server: StandIn, folder: Path, jobs: int) -> subprocess.CompletedProcess[str]:
    with agents_of(server, folder, jobs) as command:
        out, said = command.communicate(timeout=280)
    return subprocess.CompletedProcess(command.args, command.returncode, out, said)


@pytest.mark.slow
def test_two_agents_share_the_points_and_have_their_own_ports(tmp_path: Path, serving: list[StandIn]) -> None:
    content = {"command": ["${env}", "${interpreter}", "-c", ECHO, "--config", "${args_json}", "${args}"]}
    serving.append(StandIn(content, POINTS))
    done = agents(serving[0], tmp_path, jobs=2)
    assert done.returncode == 0, done.stderr
    said = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.said"))]
    assert [json.loads(words[1]) for words, _ in said] == POINTS
    assert [words[2:] for words, _ in said] == [[f"--{k}={v}" for k, v in point.items()] for point in POINTS]
    assert len(serving[0].agents) == 2
    assert len({told["MASTER_PORT"] for _, told in said}) == 2
    assert {told["WANDB_SWEEP_ID"] for _, told in said} == {"stand-in"}
    assert len({told["WANDB_RUN_ID"] for _, told in said}) == 3


@pytest.mark.slow
def test_the_agent_trains_every_point_one_wandb_run_a_job(
    tmp_path: Path, synth_corpus: Path, serving: list[StandIn]
) -> None:
    card = small_card(tmp_path, synth_corpus, wandb={"mode": "offline"})
    content = {
        "method": "grid",
        "command": ["${interpreter}", "-m", "experiments", "fit", "--config", str(card), "--config", "${args_json}"],
        "parameters": {"model.num_layers": {"values": [1, 2]}},
    }  # fmt: skip
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps(content))
    read_sweep(path)
    points = [POINTS[0] | {"data.sorted_first_epoch": False}, POINTS[1]]
    serving.append(StandIn(content, points))
    done = agents(serving[0], tmp_path, jobs=2)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json")]
    trained = {(one["config"]["model"]["num_layers"], one["config"]["model"]["skip_span"]) for one in results}
    assert trained == {(1, None), (2, 1)}
    assert [one["status"] for one in results] == ["finished"] * 2
    assert sum(one["config"]["data"]["sorted_first_epoch"] for one in results) == 1
    assert len(list(tmp_path.glob("runs/*/wandb/offline-run-*"))) == 2


WAITING = """
import os, signal, sys, time
from pathlib import Path
from experiments.run.result import Result
from experiments.run.wandb_log import close, wandb_logger
signal.signal(signal.SIGTERM, lambda *_: Path("stopped").touch())
Path("began").write_text(str(os.getpid()))
while not Path("stopped").exists():
    time.sleep(0.05)
folder = Path("run")
folder.mkdir()
logger = wandb_logger(folder, "online", project="project", name="a", config={})
close(logger, Result(**STOPPED))
Path("closed").touch()
"""


@pytest.mark.slow
@pytest.mark.parametrize("machine", [True, False], ids=["the machine is taken away", "the run is given up"])
def test_only_a_run_whose_machine_is_taken_away_is_called_preempted(
    tmp_path: Path, serving: list[StandIn], machine: bool
) -> None:
    """SIGTERM either way: to the agents, or to the run alone, as W&B's agent sends it for hyperband."""
    result = {"name": "a", "config": {}, "config_hash": "a", "seed": 0, "status": "stopped", "reason": "SIGTERM"}
    code = f"STOPPED = {result!r}\n" + WAITING
    serving.append(StandIn({"command": ["${env}", "${interpreter}", "-c", code, "${args_json}"]}, POINTS[:1]))
    with agents_of(serving[0], tmp_path, PYTHONPATH=str(ROOT), WANDB_MODE="online", WANDB_SILENT="true") as command:
        deadline = time.monotonic() + 120
        while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text():
            assert command.poll() is None, command.communicate()[1]
            assert time.monotonic() < deadline, "the run never began"
            time.sleep(0.05)
        os.kill(command.pid if machine else int((tmp_path / "began").read_text()), signal.SIGTERM)
        _, said = command.communicate(timeout=200)
    assert (tmp_path / "closed").exists(), said
    assert command.returncode == (143 if machine else 0), said
    assert serving[0].preempting == (["run1"] if machine else []), said
    assert set(serving[0].begun) == {"run1"}
