"""The pages of scaling, batch size and plan in a real browser, from disk: no errors, no requests, all charts drawn."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.batch_size import report as batch_size_report
from experiments.batch_size.sample_efficiency import row, tune
from experiments.cli import main
from tests.experiments.drawn_words import cut_words
from tests.experiments.test_batch_size import trained
from tests.experiments.test_scaling import measured

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


def scaling_page(folder: Path) -> Path:
    for devices in (1, 2):
        (folder / f"measured-{devices}.json").write_text(json.dumps(measured(devices)))
    files = ",".join(str(folder / f"measured-{devices}.json") for devices in (1, 2))
    assert main(["scaling", f"--measured={files}", f"--output={folder}"]) == 0
    return folder / "report.html"


def plan_page(folder: Path) -> Path:
    assert main(["plan", "--num-layers=8", "--gpu-memory-gib=4", f"--output={folder}"]) == 0
    return folder / "report.html"


def batch_size_page(folder: Path) -> Path:
    runs = [trained(size, rate, 9, 5, 3 + size / 64) for size in (4, 16, 64) for rate in (1e-3, 2e-3)]
    runs.append(trained(64, 4e-3, status="diverged"))
    tuned = tune(runs, 3.5)
    noise = {"noise_scale": 20.0, "low": 10.0, "high": 30.0, "signal": 1.0, "noise": 20.0, "small_batch": 4}
    record = {
        "command": "python",
        "commit": None,
        "written": "2026-11-30",
        "versions": {},
        "per_device_batch_size": 4,
        "target_loss": 3.5,
        "target_given": True,
        "curve": [vars(one) for one in tuned],
        "critical_batch": {"samples_min": 1000.0, "batch": 40.0},
        "noise_scale": [noise | {"big_batch": 32, "groups": 5, "global_batch_size": 4}],
        "rows": [row(run, 3.5, tuned) for run in runs],
        "losses": [{"folder": run.folder, "val_loss": run.val_loss} for run in runs],
    }
    batch_size_report.write_results(folder, record)
    return folder / "report.html"


@pytest.mark.parametrize("make", [scaling_page, plan_page, batch_size_page], ids=lambda make: make.__name__)
def test_it_opens_from_disk_without_errors_or_requests_and_draws_all(browser: Any, tmp_path: Path, make: Any) -> None:
    path = make(tmp_path)
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        complaints: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message, said=complaints: said.append(message.text))
        page.on("pageerror", lambda error, said=complaints: said.append(str(error)))
        page.on("request", lambda request, asked=requests: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.ready === 'true'")
        assert complaints == []
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
        charts = page.query_selector_all(".chart")
        assert len(charts) >= 2
        assert all(chart.query_selector("svg path, svg rect") for chart in charts)
        # Wide tables scroll inside their own box, never the page.
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert cut_words(page) == []
        page.close()
