"""The dashboard: what has ended and what runs, served live; it reads alone, and its death harms nothing."""

import fcntl
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.live_rows import is_held, live_rows
from tests.experiments.synthetic import write_run

ROOT = Path(__file__).parents[2]


def unfinished(root: Path, num_layers: int) -> Path:
    """A run's folder as it is in mid-training."""
    folder = root / "runs" / f"layers-{num_layers}_seed-0"
    folder.mkdir(parents=True)
    config = {"model": {"num_layers": num_layers, "hidden_size": 64, "skip_span": 4}, "seed_everything": 0}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text("{}")
    lines = [
        {"step": 10, "epoch": 0, "train/loss": 40.0, "perf/audio_seconds_per_second": 300.0},
        {"step": 19, "epoch": 0, "val/loss": 30.0, "val/wer": 0.6},
        {"step": 29, "epoch": 1, "val/loss": 20.0, "val/wer": 0.4},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3')
    return folder


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, 8)
    [row] = live_rows(tmp_path, {})
    assert (row["status"], row["num_layers"], row["val_wer"], row["loss"]) == ("interrupted", 8, 0.4, 40.0)
    assert row["wer"] is None
    assert not is_held(folder / ".lock")
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert live_rows(tmp_path, {})[0]["status"] == "running"
    assert live_rows(tmp_path, {})[0]["status"] == "interrupted"


def test_what_has_ended_or_was_put_aside_is_not_live(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, 8)
    aside = folder / "previous-1"
    aside.mkdir()
    for name in ("config.yaml", "run.json"):
        (aside / name).write_text((folder / name).read_text())
    (folder / "result.json").write_text("{}")
    assert live_rows(tmp_path, {}) == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, subprocess.Popen[str]]]:
    """A folder with one run that has ended and one in mid-training, and its dashboard."""
    write_run(tmp_path, 4, 0)
    (tmp_path / "runs" / "secret.txt").write_text("secret")
    unfinished(tmp_path, 8)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sweeps", "dashboard", str(tmp_path), f"--port={port}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"{tmp_path} at http://127.0.0.1:{port}")
        yield tmp_path, f"http://127.0.0.1:{port}/", process
        process.kill()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_it_shows_what_ended_and_what_runs_and_follows(served: tuple[Path, str, Any]) -> None:
    root, url, process = served
    page = get(url)
    assert "2 runs: 1 finished, 1 interrupted" in page
    before = get(url + "version")
    assert get(url + "version") == before
    write_run(root, 16, 1)
    assert get(url + "version") != before
    time.sleep(3.1)
    assert "3 runs: 2 finished, 1 interrupted" in get(url)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(root.glob("runs/*/result.json"))) == 2


@pytest.mark.slow
def test_it_serves_results_and_logs_and_nothing_else(served: tuple[Path, str, Any]) -> None:
    _, url, _ = served
    assert json.loads(get(url + "runs/layers-4_units-64_seed-0/result.json"))["status"] == "finished"
    for path in ("runs/secret.txt", "runs/layers-8_seed-0/config.yaml", "%2e%2e/%2e%2e/etc/passwd", "absent/log.txt"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url + path)


def test_a_folder_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sweeps.__main__ import main

    assert main(["dashboard", str(tmp_path / "absent")]) == 2
    assert "is not a folder; give the --output" in capsys.readouterr().err


@pytest.mark.browser
@pytest.mark.slow
def test_a_browser_sees_a_new_run_without_a_hand_on_it(served: tuple[Path, str, Any], chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    root, url, process = served
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(url)
        page.wait_for_function("document.documentElement.dataset.ready === 'true'")
        page.fill("#filter", "layers-16")
        assert page.inner_text("#shown") == "0 of 2"
        time.sleep(3.1)
        write_run(root, 16, 1)
        page.wait_for_function("document.getElementById('shown')?.textContent === '1 of 3'", timeout=30_000)
        process.kill()
        page.wait_for_function("document.querySelector('.status').textContent.includes('has stopped')", timeout=30_000)
        browser.close()
