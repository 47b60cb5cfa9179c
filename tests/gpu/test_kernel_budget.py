"""Every result and gradient of the persistent backend, by the error budget, over awkward sizes."""

import itertools

import pytest
import torch

from tests.prnn_ext.error_budget import assert_within_budget, make_case

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ACTIVATIONS = ("clipped_relu", "relu", "tanh")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden_size", [1, 3, 15, 16, 17, 32, 100, 250, 255, 257, 512, 1152])
def test_hidden_sizes(hidden_size: int, dtype: torch.dtype) -> None:
    assert_within_budget(make_case(9, 4, hidden_size, dtype, "cuda"), "persistent")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch_size", [1, 2, 5, 8, 9, 17, 33, 64, 100])
def test_mini_batches(batch_size: int, dtype: torch.dtype) -> None:
    assert_within_budget(make_case(7, batch_size, 320, dtype, "cuda"), "persistent")


@pytest.mark.parametrize("time_steps", [1, 2, 3, 4, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_time_steps(time_steps: int, dtype: torch.dtype) -> None:
    assert_within_budget(make_case(time_steps, 4, 192, dtype, "cuda"), "persistent")


@pytest.mark.parametrize(
    ("activation", "reverse", "ragged", "state", "folded"),
    list(itertools.product(ACTIVATIONS, (False, True), (False, True), (False, True), (False, True))),
)
def test_every_argument(activation: str, reverse: bool, ragged: bool, state: bool, folded: bool) -> None:
    for dtype in DTYPES:
        case = make_case(
            12, 6, 144, dtype, "cuda", activation=activation, reverse=reverse, ragged=ragged, state=state, folded=folded
        )
        assert_within_budget(case, "persistent")


@pytest.mark.parametrize(("hidden_size", "batch_size"), [(2048, 4), (2304, 9), (2560, 4), (4096, 2)])
def test_large_layers(hidden_size: int, batch_size: int) -> None:
    assert_within_budget(make_case(5, batch_size, hidden_size, torch.bfloat16, "cuda"), "persistent")


@pytest.mark.parametrize("hidden_size", [1760, 2560])
def test_large_layers_in_float32(hidden_size: int) -> None:
    assert_within_budget(make_case(5, 4, hidden_size, torch.float32, "cuda"), "persistent")


@pytest.mark.parametrize("batch_size", [64, 256])
def test_rounds(batch_size: int) -> None:
    assert_within_budget(make_case(6, batch_size, 1152, torch.bfloat16, "cuda"), "persistent")
    assert_within_budget(make_case(6, batch_size, 1152, torch.bfloat16, "cuda", reverse=True), "persistent")


def test_long_sequences_stay_within_budget() -> None:
    assert_within_budget(make_case(1500, 4, 256, torch.bfloat16, "cuda"), "persistent")
