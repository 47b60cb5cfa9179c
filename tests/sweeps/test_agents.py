"""The real W&B agent, several of them, against a stand-in of W&B's server: what reaches `fit`, and what is left behind.

What the stand-in covers and does not is told in `wandb_stand_in.py`.
"""

import json
import os
import subprocess
import sys
import threading
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


def agents(server: StandIn, folder: Path, jobs: int) -> subprocess.CompletedProcess[str]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ,
        "WANDB_BASE_URL": server.url,
        "WANDB_API_KEY": "0" * 40,
        "WANDB_DIR": str(folder),
        "WANDB_MODE": "offline",
        "HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "sweeps", "agents", "us/project/stand-in", f"--jobs={jobs}"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280
    )


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
