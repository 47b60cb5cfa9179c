"""The registered op: dispatch, autograd, compilation, autocast, sizes of zero, and one sentence per bad argument."""

import pytest
import torch
import torch.utils.checkpoint

import prnn_ext
from prnn_ext import reference
from tests.prnn_ext.error_budget import make_case


def op_arguments(case, backend="auto"):
    return (
        case.x,
        case.weight_hh,
        case.h_0,
        case.lengths,
        case.scale,
        case.shift,
        case.activation,
        case.reverse,
        backend,
    )


def require_grad(case):
    for name in ("x", "weight_hh", "h_0", "scale", "shift"):
        if (value := getattr(case, name)) is not None:
            value.requires_grad_()
    return case


# torch's own checker looks at .grad of tensors that are not leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_opcheck(full, reverse):
    case = require_grad(make_case(3, 2, 4, torch.float64, ragged=full, state=full, folded=full, reverse=reverse))
    torch.library.opcheck(torch.ops.prnn_ext.rnn, op_arguments(case))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_opcheck_with_defaults_left_out():
    case = require_grad(make_case(3, 2, 4, torch.float32))
    torch.library.opcheck(torch.ops.prnn_ext.rnn, (case.x, case.weight_hh))


@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradcheck(activation, reverse):
    case = require_grad(make_case(4, 3, 3, torch.float64, activation=activation, reverse=reverse))

    def run(x, weight_hh, h_0, scale, shift):
        return prnn_ext.rnn(
            x, weight_hh, h_0, case.lengths, scale=scale, shift=shift, activation=activation, reverse=reverse
        )

    assert torch.autograd.gradcheck(run, (case.x, case.weight_hh, case.h_0, case.scale, case.shift))


def test_double_backward_is_refused_with_the_way_out():
    case = require_grad(make_case(3, 2, 3, torch.float64, activation="tanh"))
    output, _ = prnn_ext.rnn(case.x, case.weight_hh, activation="tanh")
    (grad,) = torch.autograd.grad(output.sum(), case.x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiated once; .* prnn_ext\.reference\.equations"):
        torch.autograd.grad(grad.sum(), case.weight_hh)
    assert torch.autograd.gradgradcheck(
        lambda x, u: reference.equations(x, u, activation="tanh"), (case.x, case.weight_hh)
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_has_no_graph_break(dynamic):
    case = require_grad(make_case(5, 3, 4, torch.float32))

    def loss(x, weight_hh, scale):
        output, h_n = prnn_ext.rnn(x * 2, weight_hh, case.h_0.detach(), case.lengths, scale=scale)
        return output.square().sum() + h_n.sum()

    inputs = (case.x, case.weight_hh, case.scale)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for mine, eager in zip(
        torch.autograd.grad(compiled(*inputs), inputs), torch.autograd.grad(loss(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(mine, eager)


def test_compiled_graphs_hold_the_two_ops_and_plain_pytorch():
    """Both graphs, forward and backward: nothing that a compiler could not lower."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    case = require_grad(make_case(9, 8, 64, torch.float32))
    compiled = torch.compile(prnn_ext.rnn, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    output, _ = compiled(case.x, case.weight_hh, case.h_0, case.lengths, scale=case.scale, shift=case.shift)
    output.sum().backward()
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    names = {target.partition(".")[0] for target in targets if "getitem" not in target}
    assert names == {"prnn_ext", "aten"}
    assert sorted(t for t in targets if t.startswith("prnn_ext")) == [
        "prnn_ext.rnn.default",
        "prnn_ext.rnn_backward.default",
    ]


def saved_shapes(**wanted):
    """Shapes autograd keeps, weight_hh left out, with gradients for ``wanted`` alone."""
    case = make_case(5, 3, 4, torch.float32, state=False, ragged=False)
    for name in wanted:
        getattr(case, name).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        prnn_ext.rnn(case.x, case.weight_hh, scale=case.scale, shift=case.shift)
    return sorted(tuple(t.shape) for t in saved if t is not case.weight_hh)


def test_only_what_a_gradient_needs_is_saved():
    assert saved_shapes(x=True) == [(4,), (5, 3, 4)]
    assert saved_shapes(weight_hh=True, shift=True) == [(5, 3, 4)]
    assert saved_shapes(scale=True) == [(5, 3, 4), (5, 3, 4)]
    assert saved_shapes() == []


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(use_reentrant):
    case = require_grad(make_case(4, 3, 5, torch.float32))

    def layer(x, weight_hh, scale):
        return prnn_ext.rnn(x, weight_hh, lengths=case.lengths, scale=scale)[0].square()

    inputs = (case.x, case.weight_hh, case.scale)
    recomputed = torch.utils.checkpoint.checkpoint(layer, *inputs, use_reentrant=use_reentrant)
    recomputed.sum().backward()
    for leaf, expected in zip(inputs, torch.autograd.grad(layer(*inputs).sum(), inputs), strict=True):
        assert torch.equal(leaf.grad, expected)


def test_unused_results_and_gradients():
    """A loss on h_n alone, and gradients for the weights alone."""
    case = require_grad(make_case(4, 3, 5, torch.float64))
    arguments = {"scale": case.scale, "shift": case.shift}
    results = [
        torch.autograd.grad(run(case.x, case.weight_hh, case.h_0, case.lengths, **arguments)[1].sum(), case.weight_hh)[
            0
        ]
        for run in (prnn_ext.rnn, reference.equations)
    ]
    torch.testing.assert_close(*results)


def test_arguments_that_are_not_contiguous_are_copied():
    case = make_case(4, 3, 5, torch.float64)
    x = case.x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    weight = case.weight_hh.t().contiguous().t()
    h_0 = case.h_0.repeat_interleave(2, dim=1)[:, ::2]
    lengths = case.lengths.long().repeat_interleave(2)[::2]
    output, h_n = prnn_ext.rnn(x, weight, h_0, lengths)
    expected, expected_h_n = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, case.lengths)
    assert torch.equal(output, expected)
    assert torch.equal(h_n, expected_h_n)
    output.sum().backward()  # an expanded gradient
    assert x.grad is not None


def test_lengths_are_clamped_without_being_read():
    case = make_case(4, 3, 5, torch.float64)
    output, h_n = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, torch.tensor([-3, 2, 99]))
    expected, expected_h_n = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, torch.tensor([0, 2, 4]))
    assert torch.equal(output, expected)
    assert torch.equal(h_n, expected_h_n)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("T", "B", "H"), [(0, 2, 3), (4, 0, 3), (4, 2, 0), (0, 0, 0)])
def test_sizes_of_zero(T, B, H, reverse):
    case = require_grad(make_case(T, B, H, torch.float32, reverse=reverse))
    output, h_n = prnn_ext.rnn(
        case.x, case.weight_hh, case.h_0, case.lengths, scale=case.scale, shift=case.shift, reverse=reverse
    )
    assert output.shape == (T, B, H)
    assert torch.equal(h_n, case.h_0) if T == 0 else h_n.shape == (B, H)
    (output.sum() + h_n.sum()).backward()
    for name in ("x", "weight_hh", "h_0", "scale", "shift"):
        assert getattr(case, name).grad.shape == getattr(case, name).shape
    assert not case.weight_hh.grad.any()


def test_results_share_no_memory():
    case = make_case(1, 2, 3, torch.float32, ragged=False)
    for T in (0, 1):
        output, h_n = prnn_ext.rnn(case.x[:T], case.weight_hh, case.h_0)
        storages = {t.untyped_storage().data_ptr() for t in (h_n, case.h_0, case.x)} - {0}
        assert len(storages) == 3
        assert output.untyped_storage().data_ptr() not in storages


def test_scale_and_shift_keep_their_dtype_and_are_used_in_float32():
    case = make_case(6, 3, 5, torch.bfloat16)
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        scale = torch.full((5,), 1.0, dtype=dtype, requires_grad=True)
        shift = torch.zeros(5, dtype=dtype, requires_grad=True)
        output, _ = prnn_ext.rnn(case.x, case.weight_hh, scale=scale, shift=shift)
        assert output.dtype == torch.bfloat16
        output.sum().backward()
        assert scale.grad is not None
        assert shift.grad is not None
        assert scale.grad.dtype == shift.grad.dtype == dtype
        results[dtype] = output
    assert torch.equal(*results.values())


def test_autocast_casts_to_its_dtype_but_leaves_float64_alone():
    case = require_grad(make_case(4, 3, 5, torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = prnn_ext.rnn(case.x.bfloat16(), case.weight_hh, case.h_0, scale=case.scale)
    assert output.dtype == h_n.dtype == torch.bfloat16
    output.sum().backward()
    assert case.weight_hh.grad.dtype == case.scale.grad.dtype == torch.float32
    case = make_case(4, 3, 5, torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert prnn_ext.rnn(case.x, case.weight_hh, case.h_0)[0].dtype == torch.float64


x, u = torch.zeros(4, 3, 2), torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((x[0], u), {}, r"x has shape \[3, 2\]; it must be \[T, B, H\]"),
        ((x.int(), u), {}, r"x is torch.int32; it must be a floating dtype"),
        ((x, u[:1]), {}, r"weight_hh has shape \[1, 2\]; with x \[4, 3, 2\] it must be \[2, 2\]"),
        ((x, u.double()), {}, r"weight_hh is torch.float64 and x torch.float32; convert them"),
        ((x, u.to("meta")), {}, r"weight_hh is on meta and x on cpu; move them"),
        ((x, u, x[0, :2]), {}, r"h_0 has shape \[2, 2\]; with x \[4, 3, 2\] it must be \[3, 2\]"),
        ((x, u, x[0].half()), {}, r"h_0 is torch.float16 and x torch.float32"),
        ((x, u, None, torch.tensor([1, 2])), {}, r"lengths has shape \[2\]; with x \[4, 3, 2\] it must be \[3\]"),
        ((x, u, None, torch.tensor([1.0, 0.5, 1.0])), {}, r"lengths is torch.float32; it must hold integers"),
        ((x, u, None, torch.tensor([True, True, False])), {}, r"lengths is torch.bool; it must hold integers"),
        ((x, u, None, torch.tensor([1, 2, 3], device="meta")), {}, r"lengths is on meta and x on cpu"),
        ((x, u), {"scale": torch.zeros(3)}, r"scale has shape \[3\]; .* it must be \[2\]"),
        ((x, u), {"shift": torch.zeros(2).int()}, r"shift is torch.int32; it must be a floating dtype"),
        ((x, u), {"activation": "gelu"}, r"activation is 'gelu'; choose one of clipped_relu, relu, tanh"),
        ((x, u), {"backend": "magic"}, r"backend is 'magic'; choose one of auto, persistent, cudnn, reference"),
        ((x, u), {"backend": "persistent"}, r"backend='persistent' cannot run: .* CUDA tensors and x is on cpu"),
        ((x, u), {"backend": "cudnn"}, r"backend='cudnn' cannot run: .*CUDA tensors.* cuDNN has no clipped ReLU"),
    ],
)
def test_a_bad_argument_gets_one_sentence(arguments, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        prnn_ext.rnn(*arguments, **options)


def test_lengths_beyond_int32_are_clamped_and_not_wrapped():
    x, weight_hh = torch.randn(6, 3, 4), 0.1 * torch.randn(4, 4)
    expected = prnn_ext.rnn(x, weight_hh, lengths=torch.tensor([6, 6, 0]))
    found = prnn_ext.rnn(x, weight_hh, lengths=torch.tensor([2**31, 2**32 + 3, -(2**40)]))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["x", "weight_hh", "h_0", "lengths", "scale"])
def test_what_is_no_tensor_gets_a_sentence(name):
    arguments = {"x": torch.randn(2, 1, 3), "weight_hh": torch.randn(3, 3), name: [1.0]}
    with pytest.raises(ValueError, match=f"{name} is a list; it must be a torch.Tensor"):
        prnn_ext.rnn(**arguments)


def test_meta_tensors_have_shapes():
    output, h_n = prnn_ext.rnn(torch.empty(5, 2, 3, device="meta"), torch.empty(3, 3, device="meta"))
    assert (output.shape, h_n.shape) == ((5, 2, 3), (2, 3))
