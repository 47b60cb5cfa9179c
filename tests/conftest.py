"""What every test shares: run-time checks of jaxtyping's axes, and the folder of real corpora."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# One thread a process, those that tests start included: tests run side by side, and two threads of a loop on a busy
# core wait for each other most of the time. Before torch is imported, which reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before any test imports them: the hook sees only what is imported after it. An int may stand for a float, as in
# Python.
install_import_hook(["models", "data"], "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# Properties have no time limit of their own: a busy machine is no fault of theirs.
settings.register_profile("repository", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repository")


@pytest.fixture(scope="session")
def corpora() -> Path:
    """``$PRNN_CORPORA``, else ``shared/corpora`` beside the repository; skips where there is none."""
    named = os.environ.get("PRNN_CORPORA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip(f"real corpora are not in {folder}; set PRNN_CORPORA to their folder")
    return folder


@pytest.fixture(scope="session")
def synth_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spoken corpus of about a minute and a half: train.jsonl, dev.jsonl and test.jsonl, digits, six speakers."""
    from data.synth import Options, synthesize

    splits = (("train", 0.6), ("dev", 0.2), ("test", 0.2))
    return synthesize(tmp_path_factory.mktemp("synth"), Options(hours=0.025, speakers=6, splits=splits), jobs=1)


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser that the page is looked at with; skips, and the closing line says so, where there is none."""
    if CHROMIUM is None:
        pytest.skip("runs where chromium is installed")
    return CHROMIUM


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nobody should take pages for looked at that were not."""
    missed = [report.nodeid for report in terminalreporter.getreports("skipped") if "browser" in report.keywords]
    if missed:
        terminalreporter.write_line(f"NOT RUN, no chromium here: {len(missed)} browser tests", yellow=True, bold=True)
        for name in missed:
            terminalreporter.write_line(f"  {name}")
