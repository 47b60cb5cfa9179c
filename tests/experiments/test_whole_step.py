"""The whole-step benchmark: fair opponents, parts by name, the command."""

import json
from pathlib import Path

import pytest
import torch

from experiments.memory.bare_step import StepOptions
from experiments.memory.ordinary_layers import OrdinaryLayer, ordinary_stack
from experiments.whole_step.captured import _attempt, refusal
from experiments.whole_step.deep_training import train
from experiments.whole_step.profiled_parts import part_of
from experiments.whole_step.requirements import requirements
from experiments.whole_step.stack_step import StackStep
from models.frames import Frames
from models.stack import RecurrentStack, StackOptions


def test_ordinary_layers_compute_what_the_projects_layers_do():
    """With the input matrix that torch.nn.RNN brings set to the identity, over full batches."""
    options = StackOptions(5, 8, skip_span=2, module_layers=2, activation="relu")
    torch.manual_seed(0)
    own, ordinary = RecurrentStack(8, options), ordinary_stack(8, options)
    ordinary.row_convolutions.load_state_dict(own.row_convolutions.state_dict())
    with torch.no_grad():
        for layer, other in zip(own.layers, ordinary.layers, strict=True):
            other.linear.weight.copy_(layer.weight_ih)
            other.rnn.weight_ih_l0.copy_(torch.eye(8))
            other.rnn.weight_hh_l0.copy_(layer.weight_hh)
            other.norm.weight.copy_(layer.norm.weight)
    x, lengths = torch.randn(3, 12, 8), torch.full((3,), 12)
    for _ in range(2):
        torch.testing.assert_close(ordinary(x, lengths)[0], own(x, lengths)[0], rtol=1e-4, atol=1e-5)
        own, ordinary = own.eval(), ordinary.eval()


def test_what_torch_rnn_cannot_do_is_refused():
    with pytest.raises(ValueError, match=r"torch\.nn\.RNN has relu and tanh"):
        OrdinaryLayer(4, 4, "clipped_relu")
    x = torch.zeros(3, 2, 4)
    with pytest.raises(ValueError, match="use after_activation"):
        OrdinaryLayer(4, 4, "relu")(x, Frames.of(torch.tensor([3, 3]), 3), x)


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("recurrence", "recurrence"),
        ("tile_moments", "batch norm"),
        ("input_gradient", "batch norm"),
        ("void RNN_blockPersist_fp_LSTM<float>", "recurrence"),
        ("nvjet_tst_128x64_64x8_1x2_h_bz_TNT", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize64x64x64", "products"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>", "products"),
        ("void at::native::batch_norm_backward_reduce_channels_last_kernel<4, float>", "batch norm"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32", "convolutions"),
        ("void at::native::ctc_loss_log_alpha_gpu_kernel<float, long>", "CTC"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimiser"),
        ("void at::native::vectorized_elementwise_kernel<8, CUDAFunctor_add>", "pointwise and sums"),
        ("a kernel nobody knows", "other"),
    ],
)
def test_kernels_are_known_by_their_names(kernel, part):
    assert part_of(kernel) == part


@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "bf16-true"])
def test_a_stack_runs_in_each_precision_and_its_gradients_are_finite(precision):
    step = StackStep(StepOptions(StackOptions(4, 16, activation="relu"), 2, 10, precision), torch.device("cpu"))
    step.both()
    assert all(bool(torch.isfinite(p.grad).all()) for p in step.stack.parameters())
    assert step.plan() == "reference"


def _row(batch_size, policy, **figures):
    network = {"num_layers": 88, "hidden_size": 1152, "frames": 350, "precision": "bf16-true"}
    good = {"stack_speedup": 14.0, "stack_speedup_less_matrix": 12.0, "stack_ms": 80.0, "step_speedup": 13.0}
    good |= {"activation_ratio": 0.1, "over_roofline": 1.2, "stack_host_ms": 20.0}
    return network | good | {"batch_size": batch_size, "policy": policy} | figures


def _training(policy, **figures):
    sizes = {"num_layers": 1000, "hidden_size": 1152, "batch_size": 4, "policy": policy, "step_ms": 900.0}
    losses = [300.0 - i for i in range(100)] if policy == "save" else [300.0, 299.0]
    return sizes | {"losses": losses, "falls": True, "dropped_steps": 0} | figures


def test_what_was_not_measured_is_neither_met_nor_missed():
    assert {
        line.met for line in requirements([_row(4, "save", num_layers=48)], [_training("save", hidden_size=64)])
    } == {None}


def test_all_is_met_and_each_figure_can_miss():
    rows = [_row(batch, policy) for batch in (4, 64) for policy in ("save", "recompute")]
    trainings = [_training("save"), _training("recompute")]
    assert {line.met for line in requirements(rows, trainings)} == {True}
    for key, value in (
        ("stack_speedup", 4.9),
        ("step_speedup", 4.9),
        ("stack_ms", 118.0),
        ("activation_ratio", 0.46),
        ("over_roofline", 1.51),
        ("stack_host_ms", 81.0),
    ):
        bad = [row | {key: value} if row["policy"] == "save" else row for row in rows]
        assert False in {line.met for line in requirements(bad, trainings)}, key
    for bad in ({"falls": False}, {"dropped_steps": 1}, {"losses": [3.0, 2.0]}):
        assert False in {line.met for line in requirements(rows, [_training("save", **bad), trainings[1]])}


@pytest.mark.parametrize(
    ("stack", "device", "words"),
    [
        ({}, "cpu", "need a CUDA device and this is cpu"),
        ({"memory_policy": "offload"}, "cuda", "capture save or recompute"),
        ({"normalization": "sync_batch"}, "cuda", "waits for other ranks"),
        ({"memory_policy": "recompute"}, "cuda", None),
    ],
)
def test_what_cannot_be_captured_says_why(stack, device, words):
    options = StepOptions(StackOptions(4, 16, activation="relu", **stack), 2, 10)
    why = refusal(options, torch.device(device))
    assert why is None if words is None else words in why


def test_a_capture_that_fails_says_what_of():
    def capture():
        raise RuntimeError("operation not permitted\n when stream is capturing")

    assert _attempt(capture) == "Capture failed: operation not permitted when stream is capturing"
    assert _attempt(lambda: None) is None


def test_a_thousand_layers_are_trained_as_few_are():
    training = train(StackOptions(4, 16, activation="relu"), 2, 30, "32", 12, 3e-3, torch.device("cpu"))
    assert training.falls
    assert len(training.losses) == 12
    assert training.peak_bytes is None


@pytest.mark.slow
def test_the_command_writes_its_record_and_page(tmp_path):
    from experiments.cli import main

    arguments = "whole-step --device cpu --depths 2 --hidden-size 16 --batch-sizes 2 --frames 30 --rounds 1 --deep 3"
    arguments += " --deep-steps 2 --policies save,recompute"
    assert main([*arguments.split(), "--output", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "whole_step.json").read_text())
    row, recomputed = record["rows"]
    assert (row["policy"], recomputed["policy"]) == ("save", "recompute")
    assert [(one["policy"], len(one["losses"])) for one in record["trainings"]] == [("save", 2), ("recompute", 2)]
    assert {line["met"] for line in record["requirements"]} == {None}
    assert row["backend"] == "reference"
    assert row["stack_speedup"] == pytest.approx(row["ordinary_stack_ms"] / row["stack_ms"])
    assert row["ordinary_less_matrix_ms"] < row["ordinary_stack_ms"]
    assert {"recurrence", "products", "convolutions"} <= row["parts_ms"].keys()
    assert "A whole training step" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_card_of_the_study_is_read_and_the_command_line_wins(tmp_path):
    from experiments.cli import main

    card = Path(__file__).parents[2] / "experiments" / "configs" / "studies" / "deep_step.yaml"
    small = "--device cpu --depths 2 --hidden-size 16 --batch-sizes 2 --frames 30 --rounds 1 --deep 2 --deep-steps 1"
    arguments = f"whole-step --config {card} {small} --no-baseline --precisions 32 --output {tmp_path}"
    assert main(arguments.split()) == 0
    record = json.loads((tmp_path / "whole_step.json").read_text())
    assert [row["policy"] for row in record["rows"]] == ["save", "recompute"]
    assert {row["stack_speedup"] for row in record["rows"]} == {None}
