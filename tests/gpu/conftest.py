"""Tests of the kernel on a GPU: all marked ``gpu``, skipped where there is none, run by ``tests/gpu/run.sh``.

Uninitialised memory is filled with NaN (deterministic algorithms), so that a value nobody wrote is seen; a wait of the
kernel ends after two seconds, so that a lost word fails a test instead of hanging a GPU.

With PRNN_TEST_SWITCHES="PRNN_EAGER=1 PRNN_ROTATED=1" every kernel is compiled with these switches of
prnn_ext/cuda/switches.cuh: what is to replace the kernel as it is must pass the same tests.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def switches() -> dict[str, int]:
    """The macros that PRNN_TEST_SWITCHES names."""
    pairs = (pair.split("=") for pair in os.environ.get("PRNN_TEST_SWITCHES", "").split())
    return {name: int(value) for name, value in pairs}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="runs on a machine with a CUDA device (tests/gpu/run.sh)"))


@pytest.fixture(autouse=True)
def _careful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from prnn_ext import persistent, tiles

    if chosen := switches():
        plain = tiles.Tiles.defines
        monkeypatch.setattr(tiles.Tiles, "defines", lambda self, activation: {**plain(self, activation), **chosen})
    monkeypatch.setattr(persistent, "wait_limit", 2.0)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    if torch.cuda.is_available():
        persistent.check()
