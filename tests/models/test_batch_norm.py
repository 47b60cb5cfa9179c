"""Masked batch norm: torch's in the unpadded case, deaf to padding, exact gradients, float32 statistics."""

import pytest
import torch
from torch import nn

from models.batch_norm import SequenceBatchNorm


def test_agrees_with_torch_without_padding() -> None:
    torch.manual_seed(0)
    ours, theirs = SequenceBatchNorm(6).double(), nn.BatchNorm1d(6).double()
    for norm in (ours, theirs):
        nn.init.constant_(norm.weight, 1.5)
        nn.init.constant_(norm.bias, -0.3)
    ours.running_mean, ours.running_var = ours.running_mean.double(), ours.running_var.double()
    for _ in range(3):
        x = (torch.randn(10, 4, 6) * 3 + 5).double()
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        weight = torch.randn(10, 4, 6).double()
        y = ours(a, torch.ones(10, 4, 1))
        z = theirs(b.flatten(0, 1)).view_as(x)
        torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-5)
        ((y * weight).sum() + y.pow(3).sum()).backward()
        ((z * weight).sum() + z.pow(3).sum()).backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-5, atol=1e-5)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x, torch.ones(10, 4, 1)), theirs(x.flatten(0, 1)).view_as(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_padding_equals_leaving_the_frames_out(axis: int) -> None:
    torch.manual_seed(0)
    mask = torch.zeros(9, 3, 1)
    for b, length in enumerate((9, 4, 0)):
        mask[:length, b] = 1
    x = torch.randn(9, 3, 5, requires_grad=True)
    valid = mask.expand_as(x) > 0
    norm, reference = SequenceBatchNorm(5, channel_axis=axis), nn.BatchNorm1d(5)
    # channel_axis 1 sees the same frames as [B, C, T].
    given, seen = (x, mask) if axis == -1 else (x.permute(1, 2, 0), mask.permute(1, 2, 0))
    noisy = torch.where(seen > 0, given, 1e3)
    y = norm(noisy, seen)
    y = y if axis == -1 else y.permute(2, 0, 1)
    expected = reference(x[valid].view(-1, 5))
    torch.testing.assert_close(y[valid].view(-1, 5), expected)
    torch.testing.assert_close(norm.running_var, reference.running_var)
    (gradient,) = torch.autograd.grad(y[valid].pow(3).sum(), x)
    (by_torch,) = torch.autograd.grad(expected.pow(3).sum(), x)
    torch.testing.assert_close(gradient, by_torch, rtol=1e-4, atol=1e-5)
    assert (gradient[~valid] == 0).all()


def test_gradients_of_scale_and_shift() -> None:
    norm = SequenceBatchNorm(3).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(5, 2, 1, dtype=torch.float64)
    mask[3:, 1] = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        # The module computes in float32, so differences are taken with a step that float32 can see.
        scale, shift = norm.fold(x, mask)
        return torch.cat([scale, shift])

    assert torch.autograd.gradcheck(f, (x,), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_a_far_away_mean_costs_no_precision() -> None:
    norm = SequenceBatchNorm(1)
    x = 1000 + torch.randn(200, 4, 1)
    y = norm(x, torch.ones(200, 4, 1))
    assert abs(y.std().item() - 1) < 1e-2
    assert y.mean().abs() < 1e-2


def test_empty_and_non_finite_batches_leave_running_statistics_alone() -> None:
    norm = SequenceBatchNorm(2)
    x = torch.randn(3, 1, 2, requires_grad=True)
    y = norm(x, torch.zeros(3, 1, 1))
    assert torch.isfinite(y).all()
    y.sum().backward()
    assert torch.isfinite(x.grad).all()
    norm(torch.full((3, 1, 2), torch.nan), torch.ones(3, 1, 1))
    norm(torch.full((3, 1, 2), 3e38), torch.ones(3, 1, 1))
    assert norm.running_mean.tolist() == [0, 0]
    assert norm.running_var.tolist() == [1, 1]


def test_one_frame_gives_a_finite_running_variance() -> None:
    norm = SequenceBatchNorm(2)
    norm(torch.randn(1, 1, 2), torch.ones(1, 1, 1))
    assert torch.isfinite(norm.running_var).all()


def test_statistics_are_float32_under_bfloat16() -> None:
    norm = SequenceBatchNorm(4).to(torch.bfloat16)
    x = (100 + torch.randn(50, 4, 4)).to(torch.bfloat16)
    scale, shift = norm.fold(x, torch.ones(50, 4, 1))
    assert scale.dtype == shift.dtype == norm.running_mean.dtype == torch.float32
    torch.testing.assert_close(norm.running_mean, 0.1 * x.float().mean((0, 1)))
    assert norm(x, torch.ones(50, 4, 1)).dtype == torch.bfloat16
