"""A run that logs online while W&B's server goes away: it trains to its end, and what was not sent is sent later."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.run.wandb_log import ID_NAME
from tests.sweeps.small_card import small_card
from tests.sweeps.wandb_stand_in import StandIn

ROOT = Path(__file__).parents[2]
EPOCHS = 12
# `fit` itself, with less patience at its end than the minute it has.
FIT = "import sys; from experiments.run import wandb_log; wandb_log.FINISH_SECONDS = 5.0; "
FIT += "from experiments.cli import main; sys.exit(main(sys.argv[1:]))"


def serve(port: int = 0) -> StandIn:
    server = StandIn(port=port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def history(server: StandIn, run: str) -> list[dict[str, Any]]:
    with server.door:
        return list(server.streamed.get(run, {}).get("wandb-history.jsonl", []))


@pytest.mark.slow
def test_a_run_that_the_network_leaves_keeps_running_and_is_sent_later(tmp_path: Path, synth_corpus: Path) -> None:
    server = serve()
    card = small_card(tmp_path, synth_corpus, trainer={"accelerator": "cpu", "max_epochs": EPOCHS})
    output, port = tmp_path / "run", server.server_address[1]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    account = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}
    environment = kept | account | {"WANDB_ERROR_REPORTING": "false"}
    command = [sys.executable, "-c", FIT, "fit", f"--config={card}", f"--output={output}", "--wandb.mode=online"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as fit:
        deadline = time.monotonic() + 200
        while not (server.begun and (output / "metrics.jsonl").exists()):
            assert fit.poll() is None, fit.communicate()[1]
            assert time.monotonic() < deadline, "the run never began"
            time.sleep(0.05)
        server.shutdown()
        server.server_close()
        before = server
        _, said = fit.communicate(timeout=200)
    assert fit.returncode == 0, said
    result = json.loads((output / "result.json").read_text())
    assert (result["status"], result["epochs"]) == ("finished", EPOCHS)
    run = (output / ID_NAME).read_text().strip()
    assert len([line for line in history(before, run) if "val/wer" in line]) < EPOCHS
    [told] = [line for line in said.splitlines() if "wandb sync" in line]
    assert before.unknown == []

    again = serve(port)
    words = told.partition("wandb sync ")[2].split()
    program = Path(sys.executable).with_name("wandb")
    done = subprocess.run(
        [program, "sync", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    again.shutdown()
    again.server_close()
    assert done.returncode == 0, done.stdout + done.stderr
    sent = history(again, run)
    assert [line["epoch"] for line in sent if "val/wer" in line] == list(range(EPOCHS))
    summary = again.streamed[run]["wandb-summary.json"][-1]
    assert (summary["result/status"], summary["result/words"]) == ("finished", result["words"])
    assert again.unknown == []
