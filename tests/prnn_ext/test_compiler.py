"""NVRTC without a GPU, and a cache that survives damage, races and folders it may not write to."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from prnn_ext import compiler, kernel_cache

HEADER = "__device__ float twice(float v) { return FACTOR * v; }"
SOURCE = (
    '#include "twice.cuh"\nextern "C" __global__ void double_all(float* v) { v[threadIdx.x] = twice(v[threadIdx.x]); }'
)
TEXTS = {"double.cu": SOURCE, "twice.cuh": HEADER}


@pytest.fixture
def count(monkeypatch):
    """How often a source was compiled, one entry each."""
    calls = []
    compile_now = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda *given: calls.append(given) or compile_now(*given))
    return calls


def build(cache, texts=TEXTS, defines=None, arch="sm_90a", **options):
    return compiler.compile_text("double.cu", texts, defines or {"FACTOR": 2}, arch, cache, **options)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_compiles_without_a_gpu_and_reports_resources(arch, tmp_path):
    built = build(tmp_path, arch=arch)
    assert built.image.startswith(b"\x7fELF")
    found = built.resources["double_all"]
    assert found.registers > 0
    assert found.spill_stores == found.spill_loads == 0


def test_spills_are_seen(tmp_path):
    source = """extern "C" __global__ void spill(float* v) {
        float a[64];
        for (int i = 0; i < 64; i++) a[i] = v[i * 32];
        #pragma unroll
        for (int j = 0; j < 8; j++)
            #pragma unroll
            for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + j) % 64] + 1;
        for (int i = 0; i < 64; i++) v[i * 32] = a[i];
    }"""
    built = compiler.compile_text("s.cu", {"s.cu": source}, {}, cache=tmp_path, options=["--maxrregcount=32"])
    assert built.resources["spill"].spill_stores > 0
    assert built.resources["spill"].registers <= 32


def test_a_virtual_architecture_gives_ptx(tmp_path):
    built = build(tmp_path, arch="compute_80")
    assert b".target sm_80" in built.image
    assert built.resources == {}


def test_a_second_use_comes_from_the_cache(tmp_path, count):
    first = build(tmp_path)
    started = time.perf_counter()
    assert build(tmp_path) == first
    assert time.perf_counter() - started < 0.2
    assert len(count) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"texts": {**TEXTS, "double.cu": SOURCE + "\n"}},
        {"texts": {**TEXTS, "twice.cuh": HEADER + "\n"}},
        {"defines": {"FACTOR": 3}},
        {"defines": {"FACTOR": 2, "OTHER": 1}},
        {"arch": "sm_80"},
        {"options": ["--use_fast_math"]},
    ],
)
def test_whatever_decides_the_code_is_in_the_key(change, tmp_path, count):
    build(tmp_path)
    build(tmp_path, **change)
    assert len(count) == 2


def test_the_compiler_version_is_in_the_key(tmp_path, count, monkeypatch):
    build(tmp_path)
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (99, 0))
    build(tmp_path)
    assert len(count) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:99] + bytes([b[99] ^ 1]) + b[100:]])
def test_a_damaged_file_is_built_again(damage, tmp_path, count):
    first = build(tmp_path)
    (path,) = tmp_path.glob("*.bin")
    path.write_bytes(damage(path.read_bytes()))
    assert build(tmp_path) == first
    assert build(tmp_path) == first
    assert len(count) == 2


def test_one_builder_at_a_time(tmp_path, monkeypatch):
    compile_now, calls = compiler._compile, []

    def slowly(*given):
        calls.append(threading.get_ident())
        time.sleep(0.1)
        return compile_now(*given)

    monkeypatch.setattr(compiler, "_compile", slowly)
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: build(tmp_path), range(4)))
    assert len(calls) == 1
    assert all(b == built[0] for b in built)
    assert [p.suffix for p in sorted(tmp_path.iterdir())] == [".bin", ".lock"]


def test_a_folder_that_cannot_be_written_costs_a_warning_only(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(compiler.CacheUnusable, match=r"kernel cache .*file/cache cannot be written .* PRNN_EXT_CACHE"):
        built = build(tmp_path / "file" / "cache")
    assert built.resources["double_all"].registers > 0


def test_a_disk_that_fills_up_costs_a_warning_and_no_second_compilation(tmp_path, count, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache.Path, "replace", full)
    with pytest.warns(compiler.CacheUnusable, match=r"cannot be written \(No space left on device\)"):
        build(tmp_path)
    assert len(count) == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_the_default_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("PRNN_EXT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernel_cache.default_cache() == tmp_path / "prnn_ext"
    monkeypatch.setenv("PRNN_EXT_CACHE", str(tmp_path / "mine"))
    assert kernel_cache.default_cache() == tmp_path / "mine"


def test_a_refused_source_shows_the_log_and_leaves_nothing(tmp_path):
    with pytest.raises(compiler.CompilationError, match=r'refused double.cu for sm_90a(.|\n)*"FACTOR" is undefined'):
        build(tmp_path, defines={"OTHER": 1})
    assert not list(tmp_path.glob("*.bin"))


def test_an_unknown_architecture_is_refused(tmp_path):
    with pytest.raises(compiler.CompilationError, match="sm_12"):
        build(tmp_path, arch="sm_12")


@pytest.mark.parametrize(("version", "kept_out"), [((12, 6), False), ((12, 9), True), ((13, 0), True)])
def test_nvrtcs_own_cache_is_kept_out(version, kept_out, tmp_path, monkeypatch):
    """Where there is a driver, NVRTC finds the machine code of an equal program itself, and then there is no log that
    tells registers and spills. It has a cache since 12.9, and older ones refuse the option."""
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: version)
    seen = []
    monkeypatch.setattr(
        compiler, "_compile", lambda name, texts, flags, arch: seen.append(flags) or compiler.Cubin(b"", "")
    )
    for arch in ("sm_90a", "compute_80"):
        compiler.compile_text("double.cu", TEXTS, {}, arch, tmp_path)
    assert [("--no-cache" in flags) for flags in seen] == [kept_out] * 2


def test_without_nvrtc_there_is_one_sentence(monkeypatch, tmp_path):
    compiler.nvrtc_version.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(compiler.CompilerMissingError, match=r"NVRTC cannot be loaded .* backend='reference'"):
        build(tmp_path)
    monkeypatch.undo()
    compiler.nvrtc_version.cache_clear()
    build(tmp_path)
