"""`data benchmark` on a small index: every figure is there, in its unit, and the file says what was printed."""

import json
from pathlib import Path

import numpy as np
import pytest

from data import benchmark
from data.__main__ import main
from data.frames_needed import frames_needed
from data.index import IndexedCorpus
from data.synthetic_index import librispeech_like, write_synthetic_index
from data.text import Normalizer
from data.vocabulary import Vocabulary


def test_the_synthetic_index_is_an_index(tmp_path: Path) -> None:
    assert write_synthetic_index(tmp_path / "s.arrow", 500) == 500
    corpus = IndexedCorpus(tmp_path / "s.arrow")
    assert np.array_equal(corpus.durations, librispeech_like(500))
    assert len(set(corpus.keys.tolist())) == len({corpus[i].id for i in range(500)}) == 500
    assert not corpus.complaint(Vocabulary(), Normalizer())
    needed = corpus.frames_needed(Vocabulary(), Normalizer())
    assert needed.tolist() == [frames_needed(corpus[i].text) for i in range(500)]
    rates = [len(corpus[i].text) / corpus[i].duration for i in range(500)]
    assert 12 < float(np.median(rates)) < 16


@pytest.mark.slow
def test_every_figure_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, but for one figure: the eighteen processes of the real thing take minutes to start."""
    apart = benchmark._apart
    monkeypatch.setattr(benchmark, "_apart", lambda measure, *arguments: measure(*arguments))
    command = ["benchmark", str(tmp_path), "--rows=3000", "--hours=0.01", "--workers=1", "--epochs=3"]
    assert main(command) == 0
    result = json.loads((tmp_path / "data_benchmark.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert 5 < result["hours"] < 15
    assert 0 < result["open_seconds"] < 10
    for name in ("count", "seconds"):
        assert 0 < result["plan_seconds"][name]["clock"] < 10
        assert all(0 <= share < 0.05 for share in result["padding_share"][name].values())
    assert 0 < result["resume_seconds"]["clock"] < 10
    assert set(result["loading"]["hours_an_hour"]) == {"files", "shards"}
    assert 0 < apart(benchmark._open_seconds, tmp_path / "synthetic-3000.arrow") < 10
    assert result["memory_over_epochs"]["epochs"] == 3
