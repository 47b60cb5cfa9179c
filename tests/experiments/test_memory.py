"""Memory: the predictor against what real steps keep, exactly; what fits; the command."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.memory.bare_step import BareStep, StepOptions
from experiments.memory.fit import WORKSPACE, DoesNotFitError, Fit, check_fits, step_of
from experiments.memory.live_bytes import LiveBytes
from experiments.memory.prediction import footprint, predict
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.stack import StackOptions

SMALL = {"features": FeatureOptions("log_mel"), "front_end": FrontEndOptions(4)}


def _options(num_layers=8, hidden_size=32, batch_size=3, frames=40, precision="32", **stack):
    stack = StackOptions(num_layers, hidden_size, **{"activation": "relu", **stack})
    return StepOptions(stack, batch_size, frames, precision, **SMALL)


@pytest.mark.parametrize(
    ("precision", "stack"),
    [
        ("32", {}),
        ("32", {"skip_span": 1, "module_layers": 3, "num_layers": 7}),
        ("bf16-mixed", {"memory_policy": "recompute"}),
        ("bf16-true", {"skip_span": 2, "row_convolution": "ten", "memory_policy": "offload"}),
        ("32", {"skip_placement": "before_batch_norm", "normalization": "none"}),
    ],
)
def test_what_a_real_step_keeps_is_predicted_to_the_byte(precision, stack):
    options = _options(precision=precision, **stack)
    step = BareStep(options)
    step.step()
    real, expected = footprint(step), predict(options)
    # Transient tensors differ by what autocast and the recurrence make inside: the peak is not exact.
    assert replace(real, peak=0, peaks=()) == replace(expected, peak=0, peaks=())
    assert expected.peak == pytest.approx(real.peak, rel=0.05)


@pytest.mark.parametrize("ordinary", [False, True])
def test_all_that_a_step_holds_is_on_its_device(ordinary):
    step = BareStep(_options(), "meta", ordinary)
    assert {tensor.device.type for tensor in step.alive} == {"meta"}


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_layer_of_the_default_network_keeps_one_and_a_quarter_tensors(batch_size):
    options = _options(16, 256, batch_size, 100)
    tensors = predict(options).stack / options.tensor_bytes / 16
    assert 1.25 <= tensors < 1.25 + 0.03  # vectors of a layer and the mask of valid frames


@pytest.mark.slow
def test_the_deepest_network_of_the_paper_keeps_less_than_the_budget():
    """88 layers of 1,152 units at full size, on tensors without memory."""
    options = StepOptions(StackOptions(88, 1152, activation="relu"), 4, 350, "bf16-mixed")
    saved = predict(options)
    assert saved.parameters == pytest.approx(4 * 234e6, rel=0.02)
    assert saved.stack / options.tensor_bytes / 88 <= 1.5
    recomputed = predict(replace(options, stack=replace(options.stack, memory_policy="recompute")))
    assert recomputed.saved + recomputed.segment < 0.4 * saved.saved


def test_live_bytes_sees_every_tensor_once_and_its_end():
    kept = torch.zeros(100)
    with LiveBytes([kept]) as live:
        first = kept + 1
        view = first[10:]
        second = view * 2
        del first
        assert live.live == 400 + 400 + 360  # the view holds its base's storage
        del view
        assert live.live == 400 + 360
        del second
    assert (live.live, live.peak) == (400, 1160)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["save", "recompute"])
@pytest.mark.parametrize(
    ("width", "frames", "batch_size", "num_layers", "precision"),
    [
        (512, 100, 6, 40, "bf16-mixed"),
        # The front-end decides at the depths that are traced, and the stack at the one that is not.
        (64, 200, 16, 88, "bf16-mixed"),
        (480, 100, 16, 24, "32"),
    ],
)
@pytest.mark.parametrize("skip_span", [4, 3])
def test_what_was_not_traced_is_extrapolated(policy, width, frames, batch_size, num_layers, precision, skip_span):
    stack = StackOptions(num_layers, width, activation="relu", memory_policy=policy, skip_span=skip_span)
    options = StepOptions(stack, batch_size, frames, precision, **SMALL)
    found = Fit(options).peak(num_layers, batch_size) - WORKSPACE
    assert found == pytest.approx(predict(options).peak, rel=0.02)


@pytest.fixture(scope="module")
def fit():
    return Fit(_options(hidden_size=512, frames=100))


@given(
    st.integers(1, 90),
    st.integers(1, 300),
    st.integers(0, 60),
    st.integers(0, 200),
    st.sampled_from(["save", "recompute", "offload"]),
)
def test_memory_is_positive_and_never_falls_with_depth_or_batch(fit, modules, batch, deeper, more, policy):
    here = fit.peak(4 * modules, batch, policy)
    assert here > WORKSPACE
    assert fit.peak(4 * (modules + deeper), batch + more, policy) >= here


@given(st.integers(1, 90), st.integers(1, 300))
def test_recomputing_never_needs_more_than_saving(fit, modules, batch):
    assert fit.peak(4 * modules, batch, "recompute") <= fit.peak(4 * modules, batch, "save") + fit._tensor(batch)


def test_the_largest_depth_and_batch_are_the_last_that_fit(fit):
    available = 2**30
    depth = fit.largest_depth(available)
    assert fit.peak(depth, 3) <= available < fit.peak(depth + 4, 3)
    batch = fit.largest_batch(available)
    assert fit.peak(8, batch) <= available < fit.peak(8, batch + 1)
    assert fit.largest_depth(WORKSPACE) == 0


def test_a_configuration_that_cannot_fit_says_what_to_change():
    options = _options(hidden_size=512, frames=100, batch_size=64)
    needed = check_fits(options, 2**40)
    with pytest.raises(DoesNotFitError, match=r"8 layers x 512 units at a mini-batch of 64 .*: .*batch of"):
        check_fits(options, needed - 1)
    with pytest.raises(DoesNotFitError, match="memory_policy recompute"):
        check_fits(options, Fit(options).peak(8, 64, "recompute"))
    with pytest.raises(DoesNotFitError, match="lower hidden_size"):
        check_fits(options, 1)


def test_a_recognizers_own_step_is_predicted():
    from models.recognizer import Recognizer

    recognizer = Recognizer(3, 24, normalization="none", memory_policy="recompute", **SMALL)
    options = step_of(recognizer, 2, 16_000, "bf16-mixed")
    assert (options.precision, options.stack.memory_policy) == ("bf16-mixed", "recompute")
    assert options.frames == int(recognizer.output_lengths(torch.tensor([16_000]))[0])
    assert predict(options).parameters == sum(p.nbytes for p in recognizer.parameters())


@pytest.mark.slow
def test_the_command_writes_its_record_table_and_page(tmp_path):
    from experiments.cli import main

    arguments = "memory --device cpu --depths 2,4 --hidden-sizes 16 --batch-sizes 2 --frames 30 --gpu-memory-gib 24"
    assert main([*arguments.split(), "--output", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "memory.json").read_text())
    assert [(row["num_layers"], row["policy"]) for row in record["rows"]] == [
        (depth, policy) for depth in (2, 4) for policy in ("save", "recompute")
    ]
    for row in record["rows"]:
        assert row["peak_memory_source"] == "accounted"
        assert row["saved_bytes"] == row["predicted_saved_bytes"]
        assert row["peak_memory_bytes"] == row["predicted_peak_memory_bytes"]
        assert row["baseline_saved_bytes"] > row["saved_bytes"]
        assert row["baseline_peak_memory_bytes"] > row["peak_memory_bytes"]
    assert {fit["policy"] for fit in record["fits"]} == {"save", "recompute"}
    assert (tmp_path / "table.csv").read_text().count("\n") == 5
    assert "What fits on a GPU" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_traced_grid_is_called_predicted(tmp_path):
    from experiments.cli import main

    arguments = "memory --traced --depths 4 --hidden-sizes 16 --batch-sizes 2 --frames 30 --gpu-memory-gib 24"
    assert main([*arguments.split(), "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "memory.json").read_text())["rows"]
    assert {(row["device"], row["peak_memory_source"], row["step_ms"]) for row in rows} == {
        ("traced", "predicted", None)
    }
    assert all(row["peak_memory_bytes"] == row["predicted_peak_memory_bytes"] for row in rows)


@pytest.mark.slow
def test_where_the_search_ended_before_the_memory_did_it_says_at_least(tmp_path, capsys):
    from experiments.cli import main

    arguments = "memory --traced --depths 4 --hidden-sizes 16 --batch-sizes 2 --frames 30 --policies save"
    assert main([*arguments.split(), "--gpu-memory-gib", "2,10000000", "--output", str(tmp_path)]) == 0
    small, huge = json.loads((tmp_path / "memory.json").read_text())["fits"]
    assert (huge["largest_depth"], huge["largest_batch_size"]) == (65536, 65536)
    assert huge["deeper_not_tried"]
    assert huge["larger_not_tried"]
    assert 0 < small["largest_batch_size"] < 65536
    assert not small["larger_not_tried"]
    found = f"{small['largest_batch_size']:,}"
    for text in (capsys.readouterr().out, (tmp_path / "report.html").read_text()):
        assert text.count("≥ 65,536") == 2 + small["deeper_not_tried"]
        assert found in text
        assert f"≥ {found}" not in text
