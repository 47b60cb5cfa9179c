"""`--device` of every command: what is no device, and what is not there, is one sentence."""

import pytest
import torch

from experiments.cli import main
from experiments.devices import device_of


def test_without_a_name_it_is_the_gpu_where_there_is_one(monkeypatch):
    assert device_of(None) == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(None) == torch.device("cuda")
    assert device_of("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match=r"cuda:2 is not there \(torch finds 2 of them\); say --device cpu or another"):
        device_of("cuda:2")
    assert device_of("cpu") == torch.device("cpu")


@pytest.mark.parametrize("command", ["throughput", "memory", "stability"])
@pytest.mark.parametrize("name", ["gpu", "", "meta", "cuda:x", "cuda:99"])
def test_another_is_one_sentence(command, name, tmp_path, capsys):
    assert main([command, f"--device={name}", f"--output={tmp_path / 'out'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --device {name}")
    assert "cpu" in line
    assert "ipu" not in line
    assert not (tmp_path / "out").exists()
