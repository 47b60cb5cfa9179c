"""The recurrent layer as one function, against batch norm and recurrence written out for autograd in float64."""

import copy
import socket

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

import prnn_ext
from models.frames import Frames
from models.recurrent_function import normalised_recurrence
from models.recurrent_layer import RecurrentLayer
from models.saved_tensors import saved_bytes

T, D, H = 9, 5, 7
RAGGED = torch.tensor([9, 4, 0, 1])
PLACES = (None, "after_batch_norm", "before_batch_norm")


def _layer(dtype: torch.dtype, activation: str = "tanh", seed: int = 0, width: int = H) -> RecurrentLayer:
    torch.manual_seed(seed)
    layer = RecurrentLayer(D, width, activation, "batch").to(dtype)
    with torch.no_grad():
        layer.weight_ih.normal_(std=D**-0.5)
        layer.weight_hh.normal_(std=0.5 * width**-0.5)
        layer.norm.weight.uniform_(0.5, 1.5)
        layer.norm.bias.normal_()
    return layer


def _inputs(lengths: Tensor, dtype: torch.dtype, frames: int = T, width: int = H) -> tuple[Tensor, Tensor, Tensor]:
    """x and skip, zero past each length, and a gradient that is not."""
    torch.manual_seed(1)
    B = len(lengths)
    mask = (torch.arange(frames)[:, None] < lengths)[:, :, None]
    x, skip = torch.randn(frames, B, D).where(mask, 0.0), torch.randn(frames, B, width).where(mask, 0.0)
    return x.to(dtype).requires_grad_(), skip.to(dtype).requires_grad_(), torch.randn(frames, B, width).to(dtype)


def _plain(layer: RecurrentLayer, x: Tensor, skip: Tensor | None, place: str | None, lengths: Tensor) -> Tensor:
    """The layer, written out; everything in x's dtype, its padding left out by indexing."""
    valid = torch.arange(len(x))[:, None] < lengths
    z = x @ layer.weight_ih.T
    if place == "before_batch_norm":
        z = z + skip
    var, mean = torch.var_mean(z[valid], dim=0, correction=0)
    y = (z - mean) / torch.sqrt(var + layer.norm.eps) * layer.norm.weight + layer.norm.bias
    if place == "after_batch_norm":
        y = y + skip
    return prnn_ext.reference.equations(y, layer.weight_hh, None, lengths, activation=layer.activation)[0]


@pytest.mark.parametrize("activation", ["tanh", "relu", "clipped_relu"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lengths", [RAGGED, torch.tensor([9, 9]), torch.tensor([1])], ids=["ragged", "full", "one"])
def test_equals_the_equations_in_float64(activation, place, lengths):
    layer = _layer(torch.float64, activation)
    x, skip, grad = _inputs(lengths, torch.float64)
    given = skip if place else None
    leaves = [x, *layer.parameters(), *([skip] if place else [])]
    h = layer(x, Frames.of(lengths, T), given, place or "after_batch_norm")
    expected = _plain(layer, x, given, place, lengths)
    torch.testing.assert_close(h, expected, rtol=1e-10, atol=1e-10)
    gradients = zip(torch.autograd.grad(h, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True)
    for own, plain in gradients:
        torch.testing.assert_close(own, plain, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("place", PLACES)
def test_gradcheck(place):
    layer = _layer(torch.float64)
    lengths = torch.tensor([4, 4])
    x, skip, _ = _inputs(lengths, torch.float64, frames=4)
    given = skip if place else None

    def run(x, skip, weight_ih, weight_hh, gamma, beta):
        layer.norm._parameters.update(weight=gamma, bias=beta)
        before = place == "before_batch_norm"
        frames = Frames.of(lengths, 4)
        return normalised_recurrence(
            x, weight_ih, weight_hh, layer.norm, frames, skip, before=before, activation="tanh"
        )[0]

    parameters = (layer.weight_ih, layer.weight_hh, layer.norm.weight, layer.norm.bias)
    values = [p.detach().clone().requires_grad_() for p in parameters]
    assert torch.autograd.gradcheck(run, (x, given, *values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_in_the_budget_of_the_composed_layer(dtype):
    """At most twice the error of the layer made of parts, and one rounding of the scale, against float64."""
    lengths = torch.tensor([60, 33, 7, 60])
    layer, exact = _layer(dtype, "clipped_relu", width=32), _layer(torch.float64, "clipped_relu", width=32)
    exact.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    x, _, grad = _inputs(lengths, dtype, frames=60, width=32)
    frames = Frames.of(lengths, 60)
    x_exact = x.detach().double().requires_grad_()
    truth = _plain(exact, x_exact, None, None, lengths)
    truths = [truth, *torch.autograd.grad(truth, [x_exact, *exact.parameters()], grad.double())]
    results = []
    for run in (layer.forward, lambda x, frames: layer._composed(x, frames, None, "after_batch_norm")):
        h = run(x, frames)
        results.append([h, *torch.autograd.grad(h, [x, *layer.parameters()], grad)])
    for own, composed, value in zip(*results, truths, strict=True):
        scale = value.abs().max()
        allowed = 2 * (composed.double() - value).abs().max() + torch.finfo(dtype).eps * scale
        assert (own.double() - value).abs().max() <= allowed


def test_autocast_computes_in_bfloat16_and_gives_gradients_in_the_parameters_precision():
    layer = _layer(torch.float32, width=32)
    x, _, grad = _inputs(RAGGED, torch.float32, width=32)
    frames = Frames.of(RAGGED, T)
    with torch.autocast("cpu", torch.bfloat16):
        h = layer(x, frames)
    assert h.dtype == torch.bfloat16
    h.backward(grad.bfloat16())
    low = copy.deepcopy(layer).to(torch.bfloat16)
    expected = low(x.detach().bfloat16(), frames)
    torch.testing.assert_close(h.float(), expected.float(), rtol=0.02, atol=0.02)
    assert {p.grad.dtype for p in [x, *layer.parameters()]} == {torch.float32}


@pytest.mark.parametrize("extra", [0, 7, 100])
def test_padding_changes_no_valid_frame_no_gradient_and_no_running_statistic(extra):
    layer, padded = _layer(torch.float32), _layer(torch.float32)
    x, _, grad = _inputs(RAGGED, torch.float32)
    longer = F.pad(x.detach(), (0, 0, 0, 0, 0, extra)).requires_grad_()
    h, h_padded = layer(x, Frames.of(RAGGED, T)), padded(longer, Frames.of(RAGGED, T + extra))
    torch.testing.assert_close(h_padded[:T], h)
    assert h_padded[T:].count_nonzero() == 0
    h.backward(grad)
    # A gradient that says something in the padding is not heard.
    h_padded.backward(F.pad(grad, (0, 0, 0, 0, 0, extra), value=3.0))
    torch.testing.assert_close(longer.grad[:T], x.grad, rtol=1e-4, atol=1e-5)
    assert longer.grad[T:].count_nonzero() == 0
    for own, other in zip(layer.parameters(), padded.parameters(), strict=True):
        torch.testing.assert_close(other.grad, own.grad, rtol=1e-4, atol=1e-5)
    for own, other in zip(layer.buffers(), padded.buffers(), strict=True):
        torch.testing.assert_close(other, own)


def test_running_statistics_are_those_of_torch_batch_norm():
    layer = _layer(torch.float32)
    x, _, _ = _inputs(RAGGED, torch.float32)
    ordinary = torch.nn.BatchNorm1d(H)
    frames = Frames.of(RAGGED, T)
    layer(x, frames)
    ordinary((x @ layer.weight_ih.T)[frames.mask[:, :, 0] > 0])
    torch.testing.assert_close(layer.norm.running_mean, ordinary.running_mean)
    torch.testing.assert_close(layer.norm.running_var, ordinary.running_var)


def test_a_batch_without_a_valid_frame_gives_zeros():
    layer = _layer(torch.float32)
    x, _, grad = _inputs(torch.tensor([0, 0]), torch.float32)
    h = layer(x, Frames.of(torch.tensor([0, 0]), T))
    assert h.count_nonzero() == 0
    gradients = torch.autograd.grad(h, [x, *layer.parameters()], grad)
    assert all(g.count_nonzero() == 0 for g in gradients)
    assert layer.norm.running_mean.count_nonzero() == 0


def test_a_large_mean_does_not_cancel_the_variance():
    """z with a mean of a hundred deviations and two thirds padding."""
    lengths = torch.tensor([30, 100, 10])
    layer = _layer(torch.float32)
    torch.manual_seed(2)
    mask = (torch.arange(100)[:, None] < lengths)[:, :, None]
    x = (100 + torch.randn(100, 3, D)).where(mask, 0.0)
    _, moments = normalised_recurrence(x, layer.weight_ih, layer.weight_hh, layer.norm, Frames.of(lengths, 100))
    exact = (x.double() @ layer.weight_ih.double().T)[mask[:, :, 0]].var(dim=0, correction=0)
    torch.testing.assert_close(moments.values[1].double(), exact, rtol=2e-3, atol=0.0)


def test_saves_its_input_its_output_and_vectors():
    layer = _layer(torch.float32, width=64)
    lengths = torch.tensor([50, 50])
    x, _, _ = _inputs(lengths, torch.float32, frames=50, width=64)
    frames = Frames.of(lengths, 50)
    kept = saved_bytes(lambda: layer(x, frames), [x, *layer.parameters(), *layer.buffers(), *frames])
    output, vectors = 50 * 2 * 64 * 4, 2 * 64 * 4
    assert kept == output + vectors


def _rank(rank: int, port: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for name, lengths in (("both", RAGGED), ("one empty", torch.tensor([9, 4, 0, 0]))):
        layer = _layer(torch.float64)
        layer.norm.synchronised = True
        x, _, grad = _inputs(lengths, torch.float64)
        share = slice(2 * rank, 2 * rank + 2)
        own = x.detach()[:, share].requires_grad_()
        h = layer(own, Frames.of(lengths[share], T))
        gradients = torch.autograd.grad(h, [own, *layer.parameters()], grad[:, share])
        for gradient in gradients[1:]:
            torch.distributed.all_reduce(gradient)
        torch.save([h.detach(), *gradients, *layer.buffers()], f"{folder}/{name}-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_synchronised_statistics_make_two_ranks_one_batch(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_rank, (port, str(tmp_path)), nprocs=2)
    for name, lengths in (("both", RAGGED), ("one empty", torch.tensor([9, 4, 0, 0]))):
        layer = _layer(torch.float64)
        x, _, grad = _inputs(lengths, torch.float64)
        h = layer(x, Frames.of(lengths, T))
        expected = [h.detach(), *torch.autograd.grad(h, [x, *layer.parameters()], grad), *layer.buffers()]
        ranks = [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(2)]
        for i, value in enumerate(expected):
            if i < 2:  # h and the gradient of x, each rank's utterances
                torch.testing.assert_close(torch.cat([r[i] for r in ranks], dim=1), value, rtol=1e-9, atol=1e-9)
            else:
                for r in ranks:
                    torch.testing.assert_close(
                        r[i], value, rtol=1e-6 if r[i].dtype == torch.float32 else 1e-9, atol=1e-7
                    )
