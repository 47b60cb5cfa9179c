"""`python -m sweeps report` on a thousand runs of ten thousand points each: how long it takes, how fast its page opens.

    python -m tests.sweeps.report_benchmark [--runs 1000] [--points 10000]

The runs are made up; their curves are thinned by what thins a run's own when it ends, so the folders are what a real
study leaves, less `metrics.jsonl`, which a report does not read of a run that has ended. Making them is not timed.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.run.curves import CURVES_NAME, decimate
from tests.experiments.synthetic import curves, write_run

ROOT = Path(__file__).parents[2]
KINDS = 10
DEPTHS = (4, 8, 16, 24, 32, 40, 56, 64, 72, 88)


@dataclass(frozen=True)
class Made:
    """A report: its page, and the seconds that the whole command took by the clock and of processor time."""

    page: Path
    wall: float
    processor: float


def make_runs(root: Path, runs: int, points: int) -> None:
    """So many ended runs beneath `root`, a tenth of them at each of ten depths."""
    for index in range(runs):
        depth, seed = DEPTHS[index % len(DEPTHS)], index // len(DEPTHS)
        folder = write_run(root, depth, seed, points=20)
        (folder / CURVES_NAME).write_text(thinned(depth, seed % KINDS, points))


@cache
def thinned(depth: int, kind: int, points: int) -> str:
    """A run's `curves.json` of so many points logged; `KINDS` different ones a depth, so that making runs is quick."""
    logged = curves(random.Random(f"{depth}-{kind}"), points, depth)
    return json.dumps({name: decimate([(int(step), value) for step, value in one]) for name, one in logged.items()})


def make_report(root: Path) -> Made:
    """Run the command. Raises CalledProcessError where it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "sweeps", "report", str(root)], cwd=ROOT, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Made(root / "report.html", wall, processor)


def seconds_to_open(page: Path, chromium: str, times: int = 3) -> float:
    """From asking for the page until every chart is drawn; the quickest of several, since a machine has other work."""
    from playwright.sync_api import sync_playwright

    taken = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(times):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            began = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_function("document.documentElement.dataset.ready === 'true'")
            taken.append(time.perf_counter() - began)
            tab.close()
        browser.close()
    return min(taken)


def main() -> None:
    """Make, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=10_000, help="of each run's training loss")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_runs(root, options.runs, options.points)
        made = make_report(root)
        size = made.page.stat().st_size / 1e6
        print(
            f"{options.runs:,} runs of {options.points:,} points: {made.wall:.1f} s, processor {made.processor:.1f} s"
        )
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        opened = f"{seconds_to_open(made.page, chromium):.2f} s" if chromium else "not measured, no chromium here"
        print(f"page of {size:.1f} MB, opened and drawn: {opened}")


if __name__ == "__main__":
    main()
