"""The backends beside the kernel on a GPU: the reference there, and cuDNN where its equations agree."""

import pytest
import torch

import prnn_ext
from prnn_ext import reference
from tests.prnn_ext.error_budget import assert_within_budget, make_case, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_reference_is_within_the_error_budget(dtype, activation, reverse):
    assert_within_budget(make_case(23, 5, 37, dtype, "cuda", activation=activation, reverse=reverse), "reference")


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk:UserWarning")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("full", [False, True])
def test_cudnn_agrees_with_the_reference(activation, reverse, full, monkeypatch):
    # In TF32 a unit near zero falls on the other side of the ReLU, and its gradient with it.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    case = make_case(
        11, 4, 64, torch.float32, "cuda", activation=activation, reverse=reverse, ragged=False, state=full, folded=full
    )
    found, expected = run(case, "cudnn"), run(case, "reference")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_the_reference_never_waits_for_the_device():
    case = make_case(5, 3, 8, torch.float32, "cuda")
    run(case, "reference")
    try:
        torch.cuda.set_sync_debug_mode("error")
        run(case, "reference")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("reverse", [False, True])
def test_the_reference_can_be_captured(reverse):
    case = make_case(5, 3, 8, torch.float32, "cuda", reverse=reverse)
    arguments = {"scale": case.scale, "shift": case.shift, "reverse": reverse, "backend": "reference"}

    def forward():
        return prnn_ext.rnn(case.x, case.weight_hh, case.h_0, case.lengths, **arguments)[0]

    expected = forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = forward()
    graph.replay()
    assert torch.equal(output, expected)
