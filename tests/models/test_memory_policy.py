"""Memory policies: the same numbers bit by bit, running statistics moved once, and what each keeps."""

import pytest
import torch

from models.memory_policy import segments
from models.saved_tensors import saved_bytes
from models.stack import RecurrentStack, StackOptions

T, B, H = 20, 3, 8
LENGTHS = torch.tensor([20, 11, 0])


def _run(policy: str, precision: torch.dtype = torch.float32, **options) -> list[torch.Tensor]:
    """Output, gradients and buffers after one forward and backward."""
    torch.manual_seed(0)
    stack = RecurrentStack(5, StackOptions(**{"num_layers": 11, "hidden_size": H, "memory_policy": policy} | options))
    torch.manual_seed(1)
    x = torch.randn(B, T, 5).where((torch.arange(T) < LENGTHS[:, None])[:, :, None], 0.0).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        h, _ = stack(x, LENGTHS)
    torch.manual_seed(2)
    gradients = torch.autograd.grad(h, [x, *stack.parameters()], torch.randn(h.shape).to(h.dtype))
    return [h.detach(), *gradients, *stack.buffers()]


@pytest.mark.parametrize("policy", ["recompute", "offload"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"skip_span": 3},  # a skip is open across a segment's boundary
        {"skip_span": 2, "skip_placement": "after_batch_norm"},
        {"skip_span": 2, "skip_placement": "before_batch_norm"},
        {"skip_span": None, "row_convolution": "none", "activation": "tanh"},
        {"dropout": 0.3},
        {"normalization": "none"},
        {"precision": torch.bfloat16},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "default",
)
def test_policies_agree_bit_by_bit(policy, options):
    for own, saved in zip(_run(policy, **options), _run("save", **options), strict=True):
        assert torch.equal(own, saved)


def test_evaluation_takes_no_part():
    stack = RecurrentStack(H, StackOptions(4, H, memory_policy="recompute")).eval()
    x = torch.randn(B, T, H)
    assert torch.equal(stack(x, LENGTHS)[0], stack(x, LENGTHS)[0])
    assert all(bool(norm.running_mean.eq(0).all()) for norm in (layer.norm for layer in stack.layers))


def test_segments_are_whole_modules_of_about_the_square_root():
    assert segments(88, 4) == [range(start, start + 8) for start in range(1, 88, 8)]
    assert segments(1000, 4)[0] == range(1, 33)
    assert segments(3, 4) == [range(1, 4)]
    for depth in (1, 5, 9, 30, 88, 200):
        found = segments(depth, 4)
        assert [i for part in found for i in part] == list(range(1, depth + 1))
        assert all(part.start % 4 == 1 for part in found)


def test_recomputing_keeps_boundaries_alone_and_memory_grows_as_the_root():
    def kept(depth: int, policy: str) -> float:
        stack = RecurrentStack(16, StackOptions(depth, 16, memory_policy=policy))
        x, lengths = torch.zeros(50, 4, 16).transpose(0, 1).requires_grad_(), torch.full((4,), 50)
        alive = [*stack.parameters(), *stack.buffers(), x, lengths]
        return saved_bytes(lambda: stack(x, lengths), alive) / (50 * 4 * 16 * 4)

    for depth in (16, 64):
        boundaries = len(segments(depth, 4)) - 1
        assert boundaries <= kept(depth, "recompute") < boundaries + 0.5
    assert kept(64, "recompute") < 0.1 * kept(64, "save")
