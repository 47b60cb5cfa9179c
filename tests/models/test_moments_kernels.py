"""Batch norm's Triton kernels: in Triton's interpreter against float64, and compiled for GPUs that are not here."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import sequence_moments
from tests.models.moments_budget import EPS, assert_within_budget, results

triton = pytest.importorskip("triton")
SIZES = ((1, 1), (31, 5), (32, 64), (33, 65), (1100, 3), (0, 3))
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
FAR, LOUD = "a mean of 300 deviations", "padding that holds NaN"
# Triton's own functions are interpreted or compiled by what this variable said when it was imported.
INTERPRETED = """
import sys, torch
from tests.models.moments_budget import results
from models import moments_kernels
given = torch.load(sys.argv[1])
torch.save({case: results(tensors, moments_kernels) for case, tensors in given.items()}, sys.argv[2])
"""


def make(N: int, H: int, dtype: torch.dtype, offset: float = 0.0) -> dict[str, torch.Tensor]:
    """Ragged rows of z and delta, zero in the padding."""
    torch.manual_seed(N + H)
    shape = (N, 1, H) if N % 3 else (N // 3, 3, H)
    mask = (torch.rand(*shape[:2], 1) > 0.3).float()
    z, delta = (offset + torch.randn(shape)).where(mask > 0, 0.0), torch.randn(shape).where(mask > 0, 0.0)
    gamma, beta = torch.rand(H) + 0.5, torch.randn(H)
    cast = {"z": z.to(dtype), "delta": delta.to(dtype), "gamma": gamma.to(dtype), "beta": beta.to(dtype)}
    return {**cast, "mask": mask, "count": mask.sum()}


def cases() -> dict[Any, dict[str, torch.Tensor]]:
    """All inputs of these tests, by name."""
    loud = make(70, 6, torch.float32)
    loud["z"] = loud["z"].where(loud["mask"] > 0, float("nan"))
    sizes = {f"{size} {dtype}": make(*size, dtype) for size in SIZES for dtype in DTYPES}
    return {**sizes, FAR: make(1100, 2, torch.float32, offset=300.0), LOUD: loud}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, torch.Tensor]]:
    """What the kernels give for all cases."""
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip(f"runs with Triton 3.7 and up or NumPy below 2.4, not {triton.__version__} with {np.__version__}")
    folder = tmp_path_factory.mktemp("kernels")
    torch.save(cases(), folder / "given.pt")
    command = [sys.executable, "-c", INTERPRETED, str(folder / "given.pt"), str(folder / "found.pt")]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=Path(__file__).parents[2])
    return torch.load(folder / "found.pt")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
def test_kernels_stay_in_the_budget_of_plain_pytorch(interpreted, size, dtype):
    given = make(*size, dtype)
    truth, plain = results(given, sequence_moments, torch.float64), results(given, sequence_moments)
    assert_within_budget(given, interpreted[f"{size} {dtype}"], plain, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_budget_takes_one_frame_with_a_fused_multiply_add(dtype):
    """dz of one frame is the difference of two equal terms; the interpreter rounds both, a GPU only one of them."""
    given = make(1, 4, dtype)
    given["mask"] = torch.ones(1, 1, 1)
    given |= {"count": torch.tensor(1.0), "z": torch.full((1, 1, 4), 3.0, dtype=dtype), "delta": given["z"] + 3}
    truth, plain = results(given, sequence_moments, torch.float64), results(given, sequence_moments)
    assert (truth["dz"] == 0).all()
    exact = plain["folded"][0].double() * given["delta"].double()
    fused = (exact - exact.float().double()).to(dtype)
    assert fused.any()
    assert_within_budget(given, plain | {"dz": fused}, plain, truth)
    with pytest.raises(AssertionError, match="dz: error"):
        assert_within_budget(given, plain | {"dz": 8 * fused.abs()}, plain, truth)


@pytest.mark.slow
def test_a_large_mean_does_not_cancel_the_variance(interpreted):
    truth = results(cases()[FAR], sequence_moments, torch.float64)
    torch.testing.assert_close(interpreted[FAR]["moments"].double(), truth["moments"], rtol=1e-4, atol=0.0)


@pytest.mark.slow
def test_rows_without_speech_say_nothing_whatever_they_hold(interpreted):
    quiet = results(make(70, 6, torch.float32), sequence_moments)
    for name in ("moments", "folded"):
        torch.testing.assert_close(interpreted[LOUD][name], quiet[name])


@pytest.mark.parametrize("rows", [1, 32, 33, 1400, 22_400, 2_000_000])
def test_stretches_cover_every_row_once(rows):
    length, (number, _) = sequence_moments.stretches(rows, 64)
    assert length % sequence_moments.ROWS == 0
    assert (number - 1) * length < rows <= number * length
    assert number <= sequence_moments.STRETCHES


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_ops_are_registered_as_they_behave(dtype):
    """Schema (what is written in place), shapes and types under tracing."""
    given = make(33, 5, dtype)
    z, mask, gamma, beta = (given[name] for name in ("z", "mask", "gamma", "beta"))
    moments, _ = sequence_moments.norm_statistics(z, mask, gamma, beta, EPS)
    sums = sequence_moments.norm_gradient_sums(given["delta"], z, moments)
    ops = torch.ops.prnn_norm
    for op, arguments in (
        (ops.norm_statistics, (z, mask, gamma, beta, EPS)),
        (ops.norm_gradient_sums, (given["delta"], z, moments)),
        (ops.norm_gradient, (given["delta"], z.clone(), mask, moments, gamma, EPS, given["count"], sums)),
    ):
        torch.library.opcheck(op.default, arguments, test_utils=("test_schema", "test_faketensor"))


class _Kernel:
    """Stands in for Triton's; what it compiled is launched by itself."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def launch(*arguments):
            self.calls.append(("found", grid, arguments))
            return self

        return launch if len(grid) < 3 else lambda *arguments: self.calls.append(("at once", grid, arguments))


def test_a_kernel_is_looked_for_once_for_all_that_triton_compiles_for():
    from models.moments_kernels import _launch

    kernel, x = _Kernel(), torch.zeros(64)
    expected = []
    for tensor, counts, constants, found in [
        (x, (5,), (8, True), True),
        (x, (6,), (8, True), False),  # counts are not compiled for
        (x[4:], (7,), (8, True), False),
        (x[1:], (5,), (8, True), True),  # not at a multiple of 16 bytes
        (x, (5,), (9, True), True),
        (x, (5,), (8, False), True),
        (x.double(), (5,), (8, True), True),
        (x, (2**31,), (8, True), True),
        (x, (5,), (8, True), False),
    ]:
        _launch(kernel, (3, 2), (tensor,), counts, constants)
        expected.append(("found", (3, 2)) if found else ("at once", (3, 2, 1)))
        assert kernel.calls[-1][2][0] is tensor
        assert kernel.calls[-1][2][1:] == (*counts, *constants)
    assert [call[:2] for call in kernel.calls] == expected


KERNELS = {
    "tile_moments": ["*Z", "*fp32", "*ACC", "i32", "i32", "i32"],
    "folded_moments": ["*ACC", "*W", "*W", "*ACC", "*ACC", "i32", "i32", "fp32"],
    "tile_sums": ["*Z", "*Z", "*ACC", "*ACC", "i32", "i32", "i32"],
    "input_gradient": (
        ["*Z", "*Z", "*fp32", "*ACC", "*W", "*ACC", "*ACC", "*W", "*W", "i32", "i32", "i32", "i32", "fp32"]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("types", [("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "fp32"), ("fp64", "fp64")])
def test_kernels_compile_without_spills(name, capability, types):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from models import moments_kernels

    kernel = getattr(moments_kernels, name)
    names = dict(zip("ZW", types, strict=True)) | {"ACC": "fp64" if types[0] == "fp64" else "fp32"}
    argument_types = ["*" + names.get(t[1:], t[1:]) if t[0] == "*" else t for t in KERNELS[name]]
    constants = {name: getattr(sequence_moments, name) for name in ("ROWS", "COLUMNS", "STRETCHES")}
    if "DOUBLE" in kernel.arg_names:
        constants["DOUBLE"] = types[0] == "fp64"
    signature = dict(zip(kernel.arg_names, argument_types, strict=False)) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert compiled.asm["cubin"]
    assert ".local" not in compiled.asm["ptx"]
