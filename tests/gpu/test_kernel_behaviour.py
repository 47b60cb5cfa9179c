"""What a caller may rely on beside the numbers: reruns, streams, graphs, NaN, views, and a wait that ends."""

import subprocess
import sys

import pytest
import torch

import prnn_ext
from prnn_ext import build, persistent, tiles
from tests.prnn_ext.error_budget import assert_within_budget, make_case, run


def _equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_reruns_are_bit_identical(dtype: torch.dtype) -> None:
    case = make_case(40, 6, 1152, dtype, "cuda")
    first = run(case, "persistent")
    assert all(_equal(first, run(case, "persistent")) for _ in range(5))


def test_an_utterance_is_the_same_alone_and_in_a_ragged_batch() -> None:
    case = make_case(30, 8, 320, torch.bfloat16, "cuda")
    output, h_n = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, case.lengths, backend="persistent")
    for b, length in enumerate(case.lengths.tolist()):
        if length:
            alone = case.x[:length, b : b + 1], case.weight_hh, case.h_0[b : b + 1]
            output_alone, h_n_alone = prnn_ext.rnn(*alone, backend="persistent")
            assert torch.equal(output[:length, b], output_alone[:, 0])
            assert torch.equal(h_n[b], h_n_alone[0])
        assert not output[length:, b].any()


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_a_graph_replays_with_new_numbers() -> None:
    case = make_case(20, 4, 512, torch.bfloat16, "cuda", folded=False)
    x, weight = case.x.clone(), case.weight_hh.clone().requires_grad_()

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        output, h_n = prnn_ext.rnn(x, weight, lengths=case.lengths, backend="persistent")
        (gradient,) = torch.autograd.grad((output, h_n), weight, (case.grad_output, case.grad_h_n))
        return output, gradient

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        for value, expected in zip(captured, step(), strict=True):
            assert torch.equal(value, expected)


def test_two_streams_at_once() -> None:
    cases = [make_case(200, 4, 1152, torch.bfloat16, "cuda", seed=seed) for seed in (1, 2)]
    expected = [run(case, "persistent") for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(10):
        found = []
        for case, stream in zip(cases, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(run(case, "persistent"))
        torch.cuda.synchronize()
        assert all(_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_two_processes_on_one_gpu() -> None:
    """Each is time-sliced by the driver, whole grids at a time; both end, with the same numbers."""
    script = """if True:
        import torch, prnn_ext
        torch.manual_seed(0)
        x = torch.randn(200, 4, 1152).cuda().bfloat16()
        weight = (torch.randn(1152, 1152) / 50).cuda().bfloat16()
        outputs = [prnn_ext.rnn(x, weight, backend="persistent")[0] for _ in range(300)]
        prnn_ext.check()
        assert all(torch.equal(o, outputs[0]) for o in outputs)
        print(outputs[0].double().sum().item())
    """
    command = [sys.executable, "-c", script]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert printed[0] == printed[1] != ""


def test_opcheck() -> None:
    case = make_case(5, 3, 48, torch.float32, "cuda")
    arguments = [case.x, case.weight_hh, case.h_0, case.lengths, case.scale, case.shift, "clipped_relu", False]
    for argument in arguments[:3] + arguments[4:6]:
        argument.requires_grad_()
    torch.library.opcheck(torch.ops.prnn_ext.rnn.default, (*arguments, "persistent"))


def test_compile_has_one_graph() -> None:
    case = make_case(6, 4, 64, torch.float32, "cuda", folded=False)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return prnn_ext.rnn(x * 2, case.weight_hh, backend="persistent")[0] + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(case.x), layer(case.x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("activation", ["relu", "clipped_relu", "tanh"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_travel_as_in_the_reference(value: float, activation: str, dtype: torch.dtype) -> None:
    case = make_case(6, 3, 100, dtype, "cuda", activation=activation, ragged=False, folded=False)
    case.x[2, 1, 7] = value
    results = [
        prnn_ext.rnn(case.x, case.weight_hh, case.h_0, activation=activation, backend=backend)
        for backend in ("persistent", "reference")
    ]
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())


def test_nan_in_the_weights_travels() -> None:
    case = make_case(4, 3, 64, torch.bfloat16, "cuda", ragged=False, folded=False)
    case.weight_hh[5, 9] = float("nan")
    output, _ = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, backend="persistent")
    expected, _ = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, backend="reference")
    assert torch.equal(output.isnan(), expected.isnan())


def test_any_first_state() -> None:
    """h_0 need not be a value that the activation could give."""
    for activation in ("relu", "tanh"):
        case = make_case(8, 4, 96, torch.bfloat16, "cuda", activation=activation, reverse=True)
        case.h_0.mul_(50)
        case.weight_hh.mul_(0.1)
        assert_within_budget(case, "persistent")


def test_views_that_start_anywhere() -> None:
    case = make_case(6, 3, 65, torch.bfloat16, "cuda", ragged=False, folded=False)
    flat = torch.cat([case.x.new_zeros(1), case.x.flatten()])
    output, _ = prnn_ext.rnn(flat[1:].view(case.x.shape), case.weight_hh, backend="persistent")
    expected, _ = prnn_ext.rnn(case.x, case.weight_hh, backend="persistent")
    assert torch.equal(output, expected)
    strided, _ = prnn_ext.rnn(case.x.transpose(0, 1).contiguous().transpose(0, 1), case.weight_hh, backend="persistent")
    assert torch.equal(strided, expected)


def test_lengths_out_of_range_are_clamped_and_reported() -> None:
    case = make_case(6, 3, 64, torch.bfloat16, "cuda", ragged=False)
    lengths = torch.tensor([9, -3, 4], dtype=torch.int32, device="cuda")
    output, _ = prnn_ext.rnn(case.x, case.weight_hh, lengths=lengths, backend="persistent")
    expected, _ = prnn_ext.rnn(case.x, case.weight_hh, lengths=lengths.clamp(0, 6), backend="persistent")
    with pytest.raises(persistent.LengthError, match="outside 0"):
        prnn_ext.check()
    assert torch.equal(output, expected)
    prnn_ext.check()


def test_int64_lengths_are_those_of_int32() -> None:
    case = make_case(9, 5, 80, torch.bfloat16, "cuda")
    assert case.lengths is not None
    leaf = case.x.clone().requires_grad_()
    found = []
    for lengths in (case.lengths, case.lengths.long()):
        output, h_n = prnn_ext.rnn(leaf, case.weight_hh, case.h_0, lengths, backend="persistent")
        found.append((output, h_n, *torch.autograd.grad((output, h_n), leaf, (case.grad_output, case.grad_h_n))))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    prnn_ext.check()


def test_int64_lengths_beyond_int32_are_clamped_and_reported() -> None:
    case = make_case(6, 3, 64, torch.bfloat16, "cuda", ragged=False)
    lengths = torch.tensor([2**32 + 1, -(2**32), 4], device="cuda")
    output, _ = prnn_ext.rnn(case.x, case.weight_hh, lengths=lengths, backend="persistent")
    expected, _ = prnn_ext.rnn(case.x, case.weight_hh, lengths=lengths.clamp(0, 6), backend="persistent")
    with pytest.raises(persistent.LengthError, match="outside 0"):
        prnn_ext.check()
    assert torch.equal(output, expected)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_blocks_held_back_at_random_change_nothing(dtype: str, backward: bool) -> None:
    """The exchange under the worst interleavings: every block sleeps up to 20 us at a quarter of its steps."""
    case = make_case(60, 20, 320, getattr(torch, dtype), "cuda")
    gpu = persistent._gpu(0)
    chosen = tiles.choose_tiles(320, 20, dtype, backward, gpu)
    hidden = prnn_ext.rnn(case.x, case.weight_hh, case.h_0, case.lengths, backend="persistent")[0] if backward else None
    arguments = (chosen, "clipped_relu", False, case.x, case.weight_hh, case.h_0, case.lengths)
    expected = persistent.launch(*arguments, hidden=hidden)
    for _ in range(20):
        held = persistent.launch(*arguments, hidden=hidden, extra=(("PRNN_DELAY", 20000),))
        assert all(torch.equal(a, b) for a, b in zip(held, expected, strict=True))


def test_a_block_that_never_comes_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(50, 4, 256, torch.bfloat16, "cuda", ragged=False)
    chosen = tiles.choose_tiles(256, 4, "bfloat16", False, persistent._gpu(0))
    monkeypatch.setattr(persistent, "wait_limit", 0.05)
    arguments = (chosen, "relu", False, case.x, case.weight_hh, None, None)
    output, h_n = persistent.launch(*arguments, extra=(("PRNN_LOST_BLOCK", 3),))
    torch.cuda.synchronize()
    assert output.isnan().any()
    assert h_n.isnan().any()
    with pytest.raises(persistent.KernelStalledError, match="gave up"):
        persistent.launch(*arguments)
    again, _ = persistent.launch(*arguments)
    assert torch.isfinite(again).all()


@pytest.mark.parametrize("half", ["forward", "backward"])
@pytest.mark.parametrize("sides", [*tiles.SIDES.values(), tiles.Sides(18, 0), tiles.Sides(20, 0xFFF80)], ids=str)
def test_two_copies_change_no_bit_wherever_they_are_at_home(sides: tiles.Sides, half: str) -> None:
    """On a GPU whose sides are others, or which has none, the copies are right all the same."""
    backward = half == "backward"
    one = tiles.choose_tiles(1152, 4, "bfloat16", backward, build.GPUS["sm_90a"])
    two = one.with_sides(sides)
    assert two.sides
    case = make_case(300, 4, 1152, torch.bfloat16, "cuda", ragged=True)
    hidden = torch.rand_like(case.x) if backward else None
    arguments = (case.x, case.weight_hh, case.h_0, case.lengths)
    expected = persistent.launch(one, "clipped_relu", True, *arguments, hidden=hidden)
    for _ in range(3):
        found = persistent.launch(two, "clipped_relu", True, *arguments, hidden=hidden)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_plan_is_of_this_gpu() -> None:
    x = torch.empty(5, 4, 1152, dtype=torch.bfloat16, device="cuda")
    plan = prnn_ext.plan(x, torch.empty(1152, 1152, dtype=torch.bfloat16, device="cuda"))
    assert plan.backend == "persistent"
    assert plan.tiles.blocks <= torch.cuda.get_device_properties(0).multi_processor_count - 16


def test_the_code_for_older_gpus_gives_the_same_numbers() -> None:
    """PTX of compute capability 8.0, which the driver compiles here, has no instruction of a later GPU to lean on."""
    from prnn_ext.compiler import compile_cubin
    from prnn_ext.driver import load_kernel

    case = make_case(20, 4, 320, torch.bfloat16, "cuda", ragged=False)
    chosen = tiles.choose_tiles(320, 4, "bfloat16", False, build.GPUS["sm_80"])
    arguments = (chosen, "relu", False, case.x, case.weight_hh, None, None)
    expected = persistent.launch(*arguments)
    image = compile_cubin("recurrence.cu", chosen.defines("relu"), "compute_80").image
    kernel = load_kernel(image, "recurrence", persistent._LAUNCH, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persistent, "_kernel", lambda *_: kernel)
        persistent._prepared.cache_clear()
        found = persistent.launch(*arguments)
    persistent._prepared.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
