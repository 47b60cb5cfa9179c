"""The stack's step by counting: few launches, the FLOPs of five products, and no operator that waits for the device."""

import pytest

from experiments.memory.bare_step import StepOptions
from experiments.whole_step.account import account, host_seconds, main
from models.stack import StackOptions

H, B, T, L = 64, 3, 50, 20
ONCE = 30
"""Launches a stack, not a layer: which frames are valid, and the running statistics of all layers."""


@pytest.mark.parametrize(("precision", "forward", "backward"), [("bf16-true", 6.2, 12.5), ("bf16-mixed", 8.5, 17)])
@pytest.mark.parametrize("policy", ["save", "recompute"])
def test_a_layer_takes_few_launches(precision, forward, backward, policy):
    stack = StackOptions(L, H, activation="relu", future_frames=2 * L // 4, memory_policy=policy)
    found = account(StepOptions(stack, B, T, precision))
    again = forward if policy == "recompute" else 0
    assert found["forward"].launches.total() <= ONCE + L * forward
    assert found["backward"].launches.total() <= ONCE + L * (backward + again)


def test_the_products_are_five_a_layer_and_nothing_else_multiplies():
    found = account(StepOptions(StackOptions(L, H, activation="relu"), B, T, "bf16-true"))
    one = 2 * T * B * H * H
    assert found["forward"].flops == L * one
    # dU leaves one time step out.
    assert found["backward"].flops == L * (4 * one - 2 * B * H * H)
    for direction in found.values():
        assert not {"_local_scalar_dense", "nonzero", "item"} & direction.launches.keys()
    assert (found["forward"].launches["mm"], found["backward"].launches["mm"]) == (L, 4 * L)
    assert found["forward"].launches["rnn"] == found["backward"].launches["rnn_backward"] == 2 * L


@pytest.mark.slow
def test_host_time_and_the_command(capsys, monkeypatch):
    assert 0 < host_seconds(8, rounds=2)["forward"] < 1
    monkeypatch.setattr("sys.argv", ["account", "--num-layers", "8", "--hidden-size", "32"])
    main()
    assert "backward, a layer: " in capsys.readouterr().out
