"""Several W&B agents on one node, each with its own share of it (a GPU or several, or some cores) and its own port.

A plain `wandb agent` takes every GPU, and two of them would meet at the same MASTER_PORT. These are the real agents;
W&B hands each the next point of the sweep. Ctrl-C is passed on to the runs, which end with a checkpoint to go on from.
So is SIGTERM, by which a scheduler takes the machine away; the runs then tell W&B that they were preempted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.many_runs.slots import Slot, die_with_parent, free_port
from experiments.run.wandb_log import PREEMPTED
from sweeps.wandb_account import account

EXIT_TERMINATED = 128 + signal.SIGTERM


def run_agents(sweep_id: str, slots: Sequence[Slot], count: int | None = None) -> int:
    """Run one agent a slot until the sweep is over (or each has run `count` points); the highest exit code, or
    143 after SIGTERM.

    Raises ValueError, before any agent starts, where wandb is not installed, there is no account or no answer.
    """
    # Every agent would find out for itself otherwise, each in its own words.
    with account(f"to run agents of {sweep_id}"):
        pass
    program = shutil.which(
        "wandb", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    if program is None:
        raise ValueError(
            "wandb is not installed here; pip install wandb, or use python -m sweeps run, which needs no W&B."
        )
    with tempfile.TemporaryDirectory() as folder:
        return _run(program, sweep_id, slots, count, Path(folder) / "preempted")


def _run(program: str, sweep_id: str, slots: Sequence[Slot], count: int | None, preempted: Path) -> int:
    command = [program, "agent", "--forward-signals", *([f"--count={count}"] if count else []), sweep_id]
    ports: set[int] = set()
    agents: list[subprocess.Popen[bytes]] = []

    def pass_on(*_: Any) -> None:
        preempted.touch()
        for agent in agents:
            agent.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    for slot in slots:
        ports.add(port := free_port(ports))
        # The agent starts `python` from PATH: it must be the one that this runs on.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = {
            **os.environ,
            **slot.environment,
            "MASTER_PORT": str(port),
            "PATH": path,
            PREEMPTED: str(preempted),
        }
        agents.append(subprocess.Popen(command, env=environment, preexec_fn=die_with_parent(os.getpid())))
    try:
        code = max(agent.wait() for agent in agents)
        return EXIT_TERMINATED if preempted.exists() else code
    except KeyboardInterrupt:
        # A terminal's Ctrl-C has reached the agents too; a signal to this process alone has not.
        for agent in agents:
            agent.send_signal(signal.SIGINT)
        for agent in agents:
            agent.wait()
        raise
