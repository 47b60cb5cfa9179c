"""Which backend runs, and why not the others."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import prnn_ext


@pytest.fixture
def on_gpu():
    """x and weight_hh on a CUDA device that need not exist."""
    with FakeTensorMode():
        yield torch.empty(3, 2, 4, device="cuda"), torch.empty(4, 4, device="cuda")


@pytest.fixture
def kernel(monkeypatch):
    """A stand-in for the persistent backend: what it refuses is in ``kernel.reasons``."""
    stand_in = SimpleNamespace(reasons=[], pending=[])
    stand_in.unsupported_reasons = lambda *_, **__: list(stand_in.reasons)
    stand_in.choose_tiles = lambda *_: "tiles"
    stand_in.check = lambda: stand_in.pending.append("checked")
    monkeypatch.setattr(prnn_ext, "persistent", stand_in, raising=False)
    monkeypatch.setitem(sys.modules, "prnn_ext.persistent", stand_in)
    return stand_in


def test_auto_on_a_cpu_is_the_reference_and_says_why():
    plan = prnn_ext.plan(torch.zeros(3, 2, 4), torch.zeros(4, 4))
    assert plan.backend == "reference"
    assert plan.tiles is None
    assert plan.reasons["persistent"] == [
        "The persistent kernel runs on CUDA tensors and x is on cpu; move the arguments to a GPU."
    ]
    assert set(plan.reasons) == {"persistent", "cudnn"}


def test_auto_on_a_gpu_is_the_kernel_where_it_can_run(on_gpu, kernel):
    plan = prnn_ext.plan(*on_gpu)
    assert (plan.backend, plan.tiles) == ("persistent", "tiles")
    assert plan.reasons["reference"] == ["It could run, but persistent comes first."]
    kernel.reasons = ["Too large."]
    plan = prnn_ext.plan(*on_gpu)
    assert (plan.backend, plan.tiles) == ("reference", None)
    assert plan.reasons["persistent"] == ["Too large."]


def test_a_backend_asked_for_by_name_runs_or_raises_with_every_reason(on_gpu, kernel):
    assert prnn_ext.plan(*on_gpu, backend="reference").reasons["persistent"] == [
        "It could run, but reference was asked for."
    ]
    kernel.reasons = ["Too large.", "Too odd."]
    with pytest.raises(prnn_ext.BackendUnavailableError, match=r"'persistent' cannot run: Too large\. Too odd\."):
        prnn_ext.plan(*on_gpu, backend="persistent")


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_cudnn_where_the_equations_agree(on_gpu, kernel, activation):
    assert prnn_ext.unsupported_reasons(*on_gpu, activation=activation, backend="cudnn") == []
    assert prnn_ext.plan(*on_gpu, activation=activation, backend="cudnn").backend == "cudnn"


def test_cudnn_where_they_do_not(on_gpu):
    lengths = torch.zeros(2, dtype=torch.int32)
    reasons = prnn_ext.unsupported_reasons(*on_gpu, None, lengths, activation="clipped_relu", backend="cudnn")
    assert [reason.split(";")[0] for reason in reasons] == [
        "cuDNN has no clipped ReLU",
        "cuDNN takes no lengths here, since it would read them on the host",
    ]
    with FakeTensorMode():
        empty = torch.empty(0, 2, 4, device="cuda")
    (reason,) = prnn_ext.unsupported_reasons(empty, on_gpu[1], activation="relu", backend="cudnn")
    assert "cuDNN takes no empty batch" in reason


def test_an_unknown_backend_is_named_with_those_there_are():
    for ask in (prnn_ext.plan, prnn_ext.unsupported_reasons):
        with pytest.raises(ValueError, match=r"backend is 'fast'; choose one of auto, persistent, cudnn, reference"):
            ask(torch.zeros(3, 2, 4), torch.zeros(4, 4), backend="fast")


def test_check_asks_the_kernel_only_where_it_was_used(kernel, monkeypatch):
    prnn_ext.check()
    assert kernel.pending == ["checked"]
    monkeypatch.delitem(sys.modules, "prnn_ext.persistent")
    prnn_ext.check()
    assert kernel.pending == ["checked"]


def test_a_cpu_user_never_loads_the_cuda_side():
    code = (
        "import sys, torch, prnn_ext\n"
        "x = torch.zeros(3, 2, 4, requires_grad=True)\n"
        "prnn_ext.rnn(x, torch.zeros(4, 4))[0].sum().backward()\n"
        "prnn_ext.plan(x, torch.zeros(4, 4)); prnn_ext.check()\n"
        "print([name for name in ('persistent', 'driver', 'compiler') if f'prnn_ext.{name}' in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
