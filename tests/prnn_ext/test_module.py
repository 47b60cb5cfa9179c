"""PersistentRNN is a one-layer torch.nn.RNN, and says so where it is not."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn_ext


def twins(nonlinearity="relu", bias=True, batch_first=False, dtype=torch.float64):
    torch.manual_seed(0)
    options = {"nonlinearity": nonlinearity, "bias": bias, "batch_first": batch_first, "dtype": dtype}
    theirs = torch.nn.RNN(5, 7, **options)
    ours = prnn_ext.PersistentRNN(5, 7, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shape", [(6, 3, 5), (1, 1, 5), (6, 5)])
@pytest.mark.parametrize("state", [True, False])
def test_same_results_and_gradients_as_torch_rnn(nonlinearity, bias, batch_first, shape, state):
    ours, theirs = twins(nonlinearity, bias, batch_first)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    batch = shape[:-1][0 if batch_first else 1] if len(shape) == 3 else None
    hx = torch.randn((1, 7) if batch is None else (1, batch, 7), dtype=torch.float64, requires_grad=True)
    hx = hx if state else None
    results = []
    for layer in (ours, theirs):
        output, h_n = layer(x, hx)
        inputs = [x, *layer.parameters(), *([hx] if state else [])]
        results.append([output, h_n, *torch.autograd.grad(output.square().sum() + h_n.sum(), inputs)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


def test_lengths_do_what_packing_does():
    ours, theirs = twins()
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    lengths = torch.tensor([2, 6, 1])
    expected, expected_h_n = theirs(pack_padded_sequence(x, lengths, enforce_sorted=False))
    output, h_n = ours(x, lengths=lengths)
    torch.testing.assert_close(output, pad_packed_sequence(expected)[0])
    torch.testing.assert_close(h_n, expected_h_n)


def test_packed_sequences_are_pointed_to_lengths():
    ours, _ = twins()
    packed = pack_padded_sequence(torch.zeros(6, 3, 5, dtype=torch.float64), torch.tensor([6, 2, 1]))
    with pytest.raises(ValueError, match=r"input is a PackedSequence; give a padded tensor and its lengths"):
        ours(packed)


def test_same_names_shapes_and_initialisation():
    torch.manual_seed(3)
    theirs = torch.nn.RNN(5, 7)
    torch.manual_seed(3)
    ours = prnn_ext.PersistentRNN(5, 7)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    theirs.load_state_dict(ours.state_dict())
    assert "5, 7" in repr(ours)
    assert list(pickle.loads(pickle.dumps(ours)).state_dict()) == list(ours.state_dict())


def test_clipped_relu():
    layer = prnn_ext.PersistentRNN(2, 3, nonlinearity="clipped_relu")
    output, _ = layer(100 * torch.ones(4, 1, 2))
    assert output.min() >= 0
    assert output.max() <= 20


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_layers": 2}, r"num_layers is 2; a PersistentRNN is one layer"),
        ({"bidirectional": True}, r"bidirectional is True; a PersistentRNN runs one way"),
        ({"dropout": 0.1}, r"dropout is 0.1; it acts between layers"),
        ({"nonlinearity": "sigmoid"}, r"nonlinearity is 'sigmoid'; choose one of"),
        ({"backend": "tpu"}, r"backend is 'tpu'; choose one of"),
        ({"hidden_size": 0}, r"hidden_size 0; both must be at least 1"),
    ],
)
def test_what_one_layer_cannot_do_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        prnn_ext.PersistentRNN(**{"input_size": 5, "hidden_size": 7} | options)


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (((6, 3, 4),), r"input has shape \[6, 3, 4\]; it must be 2-D or 3-D with 5 features last"),
        (((5,),), r"input has shape \[5\]"),
        (((6, 3, 5), (3, 7)), r"hx has shape \[3, 7\]; for input \[6, 3, 5\] it must be \[1, 3, 7\]"),
        (((6, 3, 5), (2, 3, 7)), r"hx has shape \[2, 3, 7\]; for input \[6, 3, 5\] it must be \[1, 3, 7\]"),
        (((6, 5), (1, 1, 7)), r"hx has shape \[1, 1, 7\]; for input \[6, 5\] it must be \[1, 7\]"),
    ],
)
def test_wrong_shapes_get_one_sentence(shapes, sentence):
    with pytest.raises(ValueError, match=sentence):
        prnn_ext.PersistentRNN(5, 7)(*(torch.zeros(shape) for shape in shapes))


def test_what_users_of_torch_rnn_touch_is_there():
    for options in ({}, {"bias": False}, {"batch_first": True}, {"nonlinearity": "relu"}):
        ours, theirs = prnn_ext.PersistentRNN(5, 7, **options), torch.nn.RNN(5, 7, **options)
        names = ("input_size", "hidden_size", "num_layers", "nonlinearity", "bias", "batch_first", "dropout")
        for name in (*names, "bidirectional", "proj_size", "mode", "training"):
            assert getattr(ours, name) == getattr(theirs, name), name
            assert type(getattr(ours, name)) is type(getattr(theirs, name)), name
        assert [[w.shape for w in layer] for layer in ours.all_weights] == [
            [w.shape for w in layer] for layer in theirs.all_weights
        ]
        assert ours.all_weights[0][0] is ours.weight_ih_l0
        assert ours.flatten_parameters() is None
        assert set(public(theirs)) <= set(public(ours))


def public(module):
    return [name for name in dir(module) if not name.startswith("_") and name not in CHECKS]


CHECKS = ("check_forward_args", "check_hidden_size", "check_input", "get_expected_hidden_size", "permute_hidden")
"""Steps of torch's own forward, which nobody calls from outside."""


def test_shown_as_torch_shows_it():
    for options in ({}, {"bias": False}, {"batch_first": True}, {"bias": False, "batch_first": True}):
        assert prnn_ext.PersistentRNN(5, 7, **options).extra_repr() == torch.nn.RNN(5, 7, **options).extra_repr()
    shown = repr(prnn_ext.PersistentRNN(5, 7, nonlinearity="clipped_relu", backend="reference"))
    assert shown == "PersistentRNN(5, 7, nonlinearity=clipped_relu, backend=reference)"


def test_keywords_and_order_of_the_constructor_are_those_of_torch():
    given = (5, 7, 1, "relu", False, True, 0.0, False)
    ours, theirs = prnn_ext.PersistentRNN(*given), torch.nn.RNN(*given)
    assert (ours.nonlinearity, ours.bias, ours.batch_first) == (theirs.nonlinearity, theirs.bias, theirs.batch_first)
    assert prnn_ext.PersistentRNN(input_size=5, hidden_size=7, device="cpu", dtype=torch.float64).mode == "RNN_TANH"


def test_in_a_model_it_is_moved_copied_and_swapped():
    ours, theirs = twins(dtype=torch.float32)
    model = torch.nn.ModuleDict({"rnn": ours}).double()
    copied = copy.deepcopy(model)["rnn"]
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(copied(x)[0], theirs.double()(x)[0])
    assert copied.all_weights[0][1] is not ours.weight_hh_l0
    torch.testing.assert_close(torch.func.functional_call(ours, dict(theirs.named_parameters()), (x,))[0], theirs(x)[0])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            (torch.zeros(6, 3, 5, dtype=torch.float64),),
            r"input is torch.float64 and the weights are torch.float32; conv",
        ),
        ((torch.zeros(6, 3, 5, dtype=torch.int64),), r"input is torch.int64 and the weights are torch.float32"),
        (
            (torch.zeros(6, 3, 5), torch.zeros(1, 3, 7, dtype=torch.float16)),
            r"hx is torch.float16 and the weights are torch.float32",
        ),
    ],
)
def test_another_dtype_gets_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        prnn_ext.PersistentRNN(5, 7)(*given)


def test_autocast_casts_instead():
    layer = prnn_ext.PersistentRNN(5, 7)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.zeros(6, 3, 5), torch.zeros(1, 3, 7))[0].dtype == torch.bfloat16
        assert layer(torch.zeros(6, 3, 5, dtype=torch.bfloat16))[0].dtype == torch.bfloat16
        with pytest.raises(ValueError, match=r"input is torch.float64 and the weights are torch.float32"):
            layer(torch.zeros(6, 3, 5, dtype=torch.float64))


def test_a_second_derivative_is_refused_and_nothing_warns_before(recwarn):
    layer = prnn_ext.PersistentRNN(5, 7)
    output, _ = layer(torch.randn(6, 3, 5, requires_grad=True))
    gradients = torch.autograd.grad(output.square().sum(), list(layer.parameters()), create_graph=True)
    once = torch.autograd.grad(layer(torch.ones(6, 3, 5))[0].sum(), list(layer.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in (*gradients, *once))
    with pytest.raises(RuntimeError, match="can be differentiated once; for second derivatives use"):
        torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), list(layer.parameters()))
    assert not recwarn.list
