"""Tests of the kernel on a GPU: all marked ``gpu``, skipped where there is none, run by ``tests/gpu/run.sh``.

Uninitialised memory is filled with NaN (deterministic algorithms), so that a value nobody wrote is seen; a wait of the
kernel ends after two seconds, so that a lost word fails a test instead of hanging a GPU.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="runs on a machine with a CUDA device (tests/gpu/run.sh)"))


@pytest.fixture(autouse=True)
def _careful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from prnn_ext import persistent

    monkeypatch.setattr(persistent, "wait_limit", 2.0)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    if torch.cuda.is_available():
        persistent.check()
