"""The deep stack on a GPU: the layer's own kernels against float64, memory policies, and what was predicted."""

from dataclasses import replace

import pytest
import torch

from experiments.memory.bare_step import BareStep, StepOptions
from experiments.memory.prediction import WORKSPACE, predict
from experiments.memory.rows import measure
from experiments.whole_step.captured import StackGraph, StepGraph
from experiments.whole_step.stack_step import StackStep
from models import moments_kernels, sequence_moments
from models.frames import Frames
from models.recurrent_layer import RecurrentLayer
from models.stack import RecurrentStack, StackOptions
from tests.models.moments_budget import assert_within_budget, results

T, B, H = 60, 4, 128
LENGTHS = torch.tensor([60, 33, 7, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", [None, "after_batch_norm", "before_batch_norm"])
def test_the_layer_stays_in_the_budget_of_its_parts(dtype, place):
    """Twice the error of batch norm and recurrence composed, and four roundings of the scale, against float64."""
    torch.manual_seed(0)
    layer = RecurrentLayer(H, H, "tanh", "batch")
    with torch.no_grad():
        layer.weight_ih.normal_(std=H**-0.5)
        layer.weight_hh.normal_(std=0.5 * H**-0.5)
        layer.norm.weight.uniform_(0.5, 1.5)
    layer = layer.to("cuda", dtype)
    mask = (torch.arange(T)[:, None] < LENGTHS)[:, :, None]
    x, skip = (torch.randn(T, B, H).where(mask, 0.0).to("cuda", dtype).requires_grad_() for _ in range(2))
    gradient = torch.randn(T, B, H).to("cuda", dtype)
    exact = RecurrentLayer(H, H, "tanh", "batch").to("cuda", torch.float64)
    exact.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})

    def run(layer, forward, *tensors):
        x, skip, gradient = (t.detach().requires_grad_() for t in tensors)
        h = forward(x, Frames.of(LENGTHS.cuda(), T), skip if place else None, place or "after_batch_norm")
        leaves = [x, *layer.parameters(), *([skip] if place else [])]
        return [h.detach(), *torch.autograd.grad(h, leaves, gradient.detach())]

    own = run(layer, layer.forward, x, skip, gradient)
    composed = run(layer, layer._composed, x, skip, gradient)
    truth = run(exact, exact.forward, x.double(), skip.double(), gradient.double())
    for found, parts, value in zip(own, composed, truth, strict=True):
        assert torch.isfinite(found).all()
        allowed = 2 * (parts.double() - value).abs().max() + 4 * torch.finfo(dtype).eps * value.abs().max()
        assert (found.double() - value).abs().max() <= allowed


@pytest.mark.parametrize("policy", ["recompute", "offload"])
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_policies_agree_bit_by_bit(policy):
    def run(policy):
        torch.manual_seed(0)
        stack = RecurrentStack(256, StackOptions(12, 256, skip_span=3, memory_policy=policy)).cuda()
        torch.manual_seed(1)
        x = torch.randn(B, 200, 256, device="cuda").requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            h, _ = stack(x, torch.full((B,), 200, device="cuda"))
        gradients = torch.autograd.grad(h, [x, *stack.parameters()], torch.ones_like(h))
        return [h.detach(), *gradients, *stack.buffers()]

    for own, saved in zip(run(policy), run("save"), strict=True):
        assert torch.equal(own, saved)


@pytest.mark.parametrize("policy", ["save", "recompute"])
@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_the_peak_is_predicted_to_five_percent(policy, precision):
    torch.use_deterministic_algorithms(False)  # CTC's backward has no deterministic form
    stack = StackOptions(48, 1152, activation="relu", memory_policy=policy)
    options = StepOptions(stack, 16, 350, precision)
    assert measure(options, torch.device("cuda")).peak == pytest.approx(predict(options).peak + WORKSPACE, rel=0.05)


def test_offload_leaves_little_on_the_device():
    torch.use_deterministic_algorithms(False)  # CTC's backward has no deterministic form
    options = StepOptions(StackOptions(24, 1152, activation="relu"), 16, 350, "bf16-true")
    offload = replace(options, stack=replace(options.stack, memory_policy="offload"))
    device = torch.device("cuda")
    assert measure(offload, device).activation < 0.6 * measure(options, device).activation


@pytest.mark.parametrize("shape", [(350, 4, 1152), (350, 64, 1152), (7, 3, 33), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_batch_norms_kernels_stay_in_the_budget_of_plain_pytorch(shape, dtype, monkeypatch):
    torch.manual_seed(0)
    mask = (torch.rand(*shape[:2], 1) > 0.2).float().cuda()
    z, delta = ((3 + torch.randn(shape, device="cuda")) * mask for _ in range(2))
    gamma, beta = torch.rand(shape[2], device="cuda") + 0.5, torch.randn(shape[2], device="cuda")
    given = {name: t.to(dtype) for name, t in {"z": z, "delta": delta, "gamma": gamma, "beta": beta}.items()}
    given |= {"mask": mask, "count": mask.sum()}
    own, again = (results(given, moments_kernels) for _ in range(2))
    monkeypatch.setattr(sequence_moments, "_launches", lambda z: False)
    plain, truth = results(given, sequence_moments), results(given, sequence_moments, torch.float64)
    assert all(torch.equal(own[name], again[name]) for name in own)
    assert_within_budget(given, own, plain, truth)


@pytest.mark.parametrize("policy", ["save", "recompute"])
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_a_captured_stack_gives_the_same_gradients(policy):
    stack = StackOptions(8, 256, activation="relu", memory_policy=policy)
    step = StackStep(StepOptions(stack, 4, 100, "bf16-true"), torch.device("cuda"))
    step.fresh()
    eager = [p.grad.clone() for p in step.stack.parameters()]
    graph = StackGraph(step)
    assert graph.why_not is None
    captured = [p.grad for p in step.stack.parameters()]
    for gradient in captured:
        gradient.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(own, other) for own, other in zip(captured, eager, strict=True))


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_a_captured_step_trains_as_the_same_step_does():
    torch.use_deterministic_algorithms(False)  # CTC's backward has no deterministic form

    def losses(captured):
        options = StepOptions(StackOptions(4, 128, activation="relu"), 4, 100, "32")
        step = BareStep(options, torch.device("cuda"))
        found = []
        graph = StepGraph(step) if captured else None
        assert graph is None or graph.why_not is None
        # Warm-ups and the first replay are steps too.
        for _ in range(8 if captured else 12):
            (graph.replay if graph else step.train)()
            found.append(step.forward().item())
        return found

    torch.testing.assert_close(losses(True), losses(False)[4:], rtol=2e-3, atol=1e-3)
