"""A report on a thousand runs of ten thousand points each: made, opened, filtered in time (`report_benchmark.py`)."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweeps.report_benchmark import Made, make_report, make_runs, seconds_to_open

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    root = tmp_path_factory.mktemp("thousand")
    make_runs(root, runs=1000, points=10_000)
    yield make_report(root)
    shutil.rmtree(root)


def test_it_is_made_within_thirty_seconds(made: Made) -> None:
    # Of processor time; wall time is the machine's other business.
    assert made.processor < 30
    assert made.page.stat().st_size < 5_000_000
    assert len((made.page.parent / "table.csv").read_text().splitlines()) == 1001


@pytest.mark.alone
@pytest.mark.browser
def test_it_opens_within_three_seconds(made: Made, chromium: str) -> None:
    # By the clock, since it is a user's; beside other tests 3.3 s were seen.
    assert seconds_to_open(made.page, chromium) < 3.0


@pytest.mark.browser
def test_one_run_of_a_thousand_is_found(made: Made, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(Path(made.page).as_uri())
        page.wait_for_function("document.documentElement.dataset.ready === 'true'")
        page.fill("#filter", "layers-88_units-64_seed-42")
        assert page.inner_text("#shown") == "1 of 1000"
        browser.close()
