"""The page in a real browser, from disk: no errors, no requests, charts drawn, table sorted and filtered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.report.figures import Axis
from experiments.report.page import Study, write_page
from experiments.report.paper import TABLES
from experiments.report.table import read_row
from tests.experiments.drawn_words import cut_words
from tests.experiments.synthetic import study_rows, write_run

pytestmark = pytest.mark.browser
DIVERGED = {"status": "diverged", "reason": "5 non-finite steps"}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    for depth in (1, 4, 8):
        for seed in (0, 1):
            write_run(root, depth, seed, **(DIVERGED if (depth, seed) == (8, 1) else {}))
    study = Study("WER by depth", "Is deeper better?", "python", study_rows(root), root, paper=TABLES)
    write_page(root / "report.html", study)
    return root / "report.html"


def opened(browser: Any, path: Path, width: int = 1280) -> tuple[Any, list[str], list[str]]:
    """The page once all charts are drawn, with what it complained of and what it asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("document.documentElement.dataset.ready === 'true'")
    return page, complaints, requests


def shown(page: Any) -> list[str]:
    return [row.get_attribute("data-run") for row in page.query_selector_all("#table tbody tr") if row.is_visible()]


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_from_disk_without_errors_or_requests_and_draws_all(browser: Any, report: Path, width: int) -> None:
    page, complaints, requests = opened(browser, report, width)
    assert complaints == []
    assert requests == [report.as_uri()]
    charts = page.query_selector_all(".chart")
    assert len(charts) == 11
    for chart in charts:
        box = chart.query_selector("svg.marks").bounding_box()
        assert box["width"] > 200
        assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert cut_words(page) == []
    assert len(page.query_selector_all(".curve[data-metric='train/loss'] .mark-line path")) >= 6
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_long_names_of_two_things_varied_are_not_cut(browser: Any, tmp_path: Path, width: int) -> None:
    rows = []
    for index, activation in enumerate(("clipped_relu", "relu", "tanh")):
        for place in ("after_activation", "before_batch_norm"):
            folder = write_run(tmp_path / activation / place, 4 + index, 0)
            row = read_row(folder, tmp_path)
            assert row is not None
            rows.append(row | {"activation": activation, "skip_placement": place})
    axis = Axis("activation", "activation", "activation", numeric=False)
    study = Study("Activations", "Which?", "python", rows, tmp_path, axis, "skip_placement")
    write_page(tmp_path / "report.html", study)
    page, complaints, _ = opened(browser, tmp_path / "report.html", width)
    assert complaints == []
    assert cut_words(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    headers = page.eval_on_selector_all("#table th", "all => all.map(one => one.textContent)")
    assert headers[1:4] == ["run", "activation", "skip placement"]
    page.close()


def test_the_filter_leaves_the_rows_that_have_every_word(browser: Any, report: Path) -> None:
    page, complaints, _ = opened(browser, report)
    page.fill("#filter", "DIVERGED layers-8")
    assert shown(page) == ["runs/layers-8_units-64_seed-1"]
    assert page.inner_text("#shown") == "1 of 6"
    page.fill("#filter", "")
    assert len(shown(page)) == 6
    assert complaints == []
    page.close()


def test_a_header_sorts_by_number_with_the_missing_last(browser: Any, report: Path) -> None:
    page, _, _ = opened(browser, report)
    header = page.get_by_role("button", name="test WER, %")
    for direction in ("ascending", "descending"):
        header.click()
        cells = page.eval_on_selector_all("#table tbody tr", "rows => rows.map(row => row.cells[6].dataset.key ?? '')")
        numbers = [float(cell) for cell in cells[:-1]]
        assert numbers == sorted(numbers, reverse=direction == "descending")
        assert cells[-1] == ""
    page.close()


def test_a_box_chooses_the_curves(browser: Any, report: Path) -> None:
    page, complaints, _ = opened(browser, report)
    lines = ".curve[data-metric='val/wer'] .mark-line path"
    before = len(page.query_selector_all(lines))
    page.uncheck("tr[data-run='runs/layers-1_units-64_seed-0'] input")
    page.wait_for_function(f'document.querySelectorAll("{lines}").length === {before - 1}')
    assert complaints == []
    page.close()
