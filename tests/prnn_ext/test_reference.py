"""Three rungs: autograd through the equations, the hand-derived backward, and what stands on them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import prnn_ext
from prnn_ext import reference
from tests.prnn_ext.error_budget import assert_within_budget, make_case, run

cases = st.builds(
    make_case,
    T=st.integers(1, 7),
    B=st.integers(1, 5),
    H=st.integers(1, 9),
    dtype=st.just(torch.float64),
    activation=st.sampled_from(reference.ACTIVATIONS),
    reverse=st.booleans(),
    ragged=st.booleans(),
    state=st.booleans(),
    folded=st.booleans(),
    seed=st.integers(0, 1000),
)


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
@pytest.mark.parametrize(("T", "B", "H"), [(1, 1, 1), (1, 3, 5), (9, 1, 7), (12, 4, 16)])
def test_equations_are_those_of_torch_rnn(nonlinearity, T, B, H):
    torch.manual_seed(0)
    layer = torch.nn.RNN(H, H, nonlinearity=nonlinearity, bias=False, dtype=torch.float64)
    x = torch.randn(T, B, H, dtype=torch.float64)
    h_0 = torch.randn(B, H, dtype=torch.float64)
    expected, expected_h_n = layer(x, h_0[None])
    output, h_n = reference.equations(x @ layer.weight_ih_l0.T, layer.weight_hh_l0, h_0, activation=nonlinearity)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(h_n, expected_h_n[0])


@settings(max_examples=60, deadline=None)
@given(case=cases)
def test_hand_derived_backward_is_that_of_autograd(case):
    leaves = {
        name: value.clone().requires_grad_()
        for name in ("x", "weight_hh", "h_0", "scale", "shift")
        if (value := getattr(case, name)) is not None
    }
    output, h_n = reference.equations(lengths=case.lengths, activation=case.activation, reverse=case.reverse, **leaves)
    found = torch.autograd.grad((output, h_n), list(leaves.values()), (case.grad_output, case.grad_h_n))
    expected = {"output": output, "h_n": h_n, **{f"grad_{n}": g for n, g in zip(leaves, found, strict=True)}}
    actual = run(case, "reference")
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value.detach(), msg=lambda text, name=name: f"{name}: {text}")


@settings(max_examples=40, deadline=None)
@given(case=cases, extra=st.integers(0, 4), filler=st.sampled_from([0.0, 1e9, float("inf"), float("nan")]))
def test_padding_never_speaks(case, extra, filler):
    """Each utterance alone gives what it gives in a ragged batch, whatever lies past its length."""
    T, B, H = case.x.shape
    lengths = torch.full((B,), T, dtype=torch.int32) if case.lengths is None else case.lengths
    padded = torch.cat([case.x, case.x.new_zeros(extra, B, H)])
    past = torch.arange(T + extra)[:, None] >= lengths
    padded = padded.masked_fill(past[:, :, None], filler).requires_grad_()
    scale = None if case.scale is None else case.scale.clone().requires_grad_()
    grad_output = torch.cat([case.grad_output, case.x.new_zeros(extra, B, H)])
    # A loss that looks at padding must not move anything either.
    grad_output = grad_output.masked_fill(past[:, :, None], filler)
    arguments = {"activation": case.activation, "reverse": case.reverse}
    output, h_n = prnn_ext.rnn(padded, case.weight_hh, case.h_0, lengths, scale=scale, shift=case.shift, **arguments)
    leaves = [padded] if scale is None else [padded, scale]
    grads = torch.autograd.grad((output, h_n), leaves, (grad_output, case.grad_h_n))
    assert not output.detach()[past].any()
    assert not grads[0][past].any()
    scale_sum = torch.zeros(H, dtype=torch.float64)
    for b in range(B):
        n = int(lengths[b])
        x = case.x[:n, b : b + 1].clone().requires_grad_()
        h_0 = None if case.h_0 is None else case.h_0[b : b + 1]
        alone, alone_h_n = prnn_ext.rnn(x, case.weight_hh, h_0, scale=scale, shift=case.shift, **arguments)
        own = [x] if scale is None else [x, scale]
        alone_grads = torch.autograd.grad(
            (alone, alone_h_n), own, (case.grad_output[:n, b : b + 1], case.grad_h_n[b : b + 1])
        )
        torch.testing.assert_close(output[:n, b : b + 1], alone)
        torch.testing.assert_close(h_n[b : b + 1], alone_h_n)
        torch.testing.assert_close(grads[0][:n, b : b + 1], alone_grads[0])
        scale_sum += 0 if scale is None else alone_grads[1]
    if scale is not None:
        torch.testing.assert_close(grads[1], scale_sum)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_reference_is_within_the_error_budget(dtype, activation, reverse):
    assert_within_budget(make_case(23, 5, 37, dtype, activation=activation, reverse=reverse), "reference")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_a_size_that_onednn_multiplies_is_within_the_error_budget(activation, reverse, monkeypatch):
    """On processors without oneDNN this is one more size."""
    case = make_case(9, 8, 384, torch.float32, activation=activation, reverse=reverse)
    assert_within_budget(case, "reference")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert_within_budget(case, "reference")


def test_the_error_budget_can_fail(monkeypatch):
    """Results that are wrong in the third digit are found."""
    case = make_case(6, 3, 8, torch.float32)
    wrong = {name: value * 1.001 for name, value in run(case, "reference").items()}
    monkeypatch.setattr("tests.prnn_ext.error_budget.run", lambda *_: wrong)
    with pytest.raises(AssertionError, match="exceeds its budget"):
        assert_within_budget(case, "reference")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["x", "weight_hh", "h_0"])
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_nan_and_infinity_travel_as_in_the_equations(activation, where, value):
    case = make_case(5, 3, 4, torch.float64, activation=activation)
    getattr(case, where).view(-1)[1] = value
    arguments = {"scale": case.scale, "shift": case.shift, "activation": activation}
    output, h_n = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, case.lengths, **arguments)
    expected, expected_h_n = reference.equations(case.x, case.weight_hh, case.h_0, case.lengths, **arguments)
    torch.testing.assert_close(output, expected, equal_nan=True)
    torch.testing.assert_close(h_n, expected_h_n, equal_nan=True)


@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_a_nan_weight_reaches_every_state(activation):
    case = make_case(4, 2, 3, torch.float64, activation=activation, ragged=False, state=False)
    case.weight_hh[0, 0] = float("nan")
    output, _ = prnn_ext.rnn(case.x, case.weight_hh, activation=activation)
    assert output[:, :, 0].isnan().all()


def test_clipped_relu_saturates_at_20():
    x = torch.tensor([[[19.0, 20.0, 21.0, -1.0]]], requires_grad=True)
    output, _ = prnn_ext.rnn(x, torch.zeros(4, 4))
    output.sum().backward()
    assert output.flatten().tolist() == [19.0, 20.0, 20.0, 0.0]
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("reverse", [False, True])
def test_no_memory_is_read_before_it_is_written(reverse):
    """PyTorch fills what it allocates with NaN while it is asked for deterministic algorithms."""
    case = make_case(9, 8, 384, torch.float32, reverse=reverse)
    expected = run(case, "reference")
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        found = run(case, "reference")
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_two_runs_are_bit_identical():
    case = make_case(17, 6, 33, torch.float32)
    for first, second in zip(run(case, "auto").values(), run(case, "auto").values(), strict=True):
        assert torch.equal(first, second)
