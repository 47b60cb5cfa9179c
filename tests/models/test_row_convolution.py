"""Row convolutions: the sum over future frames, and where they stand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.row_convolution import RowConvolution, row_convolution_plan


@pytest.mark.parametrize(("frames", "future"), [(7, 0), (7, 3), (2, 5), (1, 1)])
def test_sum_over_future_frames_and_its_gradients(frames: int, future: int) -> None:
    torch.manual_seed(0)
    layer = RowConvolution(3, future).double()
    torch.nn.init.normal_(layer.weight)
    h = torch.randn(frames, 2, 3, dtype=torch.float64, requires_grad=True)
    padded = torch.nn.functional.pad(h, (0, 0, 0, 0, 0, future))
    expected = sum(layer.weight[j] * padded[j : j + frames] for j in range(future + 1))
    torch.testing.assert_close(layer(h), expected)
    weight = torch.randn_like(h)
    ours = torch.autograd.grad((layer(h) * weight).sum(), [h, layer.weight])
    torch.testing.assert_close(ours, torch.autograd.grad((expected * weight).sum(), [h, layer.weight]))


def test_starts_as_the_identity() -> None:
    h = torch.randn(5, 2, 3)
    assert torch.equal(RowConvolution(3, 4)(h), h)


@pytest.mark.parametrize(
    ("num_layers", "module_layers", "placement", "expected"),
    [
        (8, 4, "per_module", {4: [20], 8: [20]}),
        (10, 4, "per_module", {4: [20], 8: [20]}),
        (12, 4, "per_module", {4: [13], 8: [13], 12: [14]}),
        (3, 4, "per_module", {}),
        (40, 4, "ten", {4 * i: [4] for i in range(1, 11)}),
        (10, 4, "ten", {i: [4] for i in range(1, 11)}),
        (4, 4, "ten", {1: [4, 4, 4], 2: [4, 4, 4], 3: [4, 4], 4: [4, 4]}),
        (1, 4, "ten", {1: [4] * 10}),
        (88, 4, "ten", {i: [4] for i in (9, 18, 26, 35, 44, 53, 62, 70, 79, 88)}),
        (88, 4, "none", {}),
    ],
)
def test_placement_table(num_layers: int, module_layers: int, placement: str, expected: dict[int, list[int]]) -> None:
    assert row_convolution_plan(num_layers, module_layers, placement) == expected


@given(
    num_layers=st.integers(1, 1000),
    module_layers=st.integers(1, 12),
    placement=st.sampled_from(["per_module", "ten"]),
    future_frames=st.integers(0, 100),
)
def test_frames_are_all_given_out_evenly(
    num_layers: int, module_layers: int, placement: str, future_frames: int
) -> None:
    plan = row_convolution_plan(num_layers, module_layers, placement, future_frames)
    shares = [frames for here in plan.values() for frames in here]
    assert len(shares) == (10 if placement == "ten" else num_layers // module_layers)
    if shares:
        assert sum(shares) == future_frames
        assert max(shares) - min(shares) <= 1
        assert min(plan) >= 1
        assert max(plan) <= num_layers
