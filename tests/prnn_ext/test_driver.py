"""Arguments as the driver wants them; launches themselves need a GPU."""

import ctypes
import struct
import time

import pytest
import torch

from prnn_ext import compiler, driver

CTYPES = {"P": ctypes.c_void_p, "i": ctypes.c_int, "q": ctypes.c_longlong, "f": ctypes.c_float}


@pytest.mark.parametrize("signature", ["", "P", "iP", "PiPfq", "iiiP", "PPPPPPPPiiiif", "fqf"])
def test_arguments_lie_where_c_would_put_them(signature):
    arguments = driver.Arguments(signature)
    layout = type("Layout", (ctypes.Structure,), {"_fields_": [(f"p{i}", CTYPES[c]) for i, c in enumerate(signature)]})
    values = [i + 1 for i in range(len(signature))]
    arguments.pack(*values)
    pointers = (ctypes.c_void_p * max(len(signature), 1)).from_address(arguments.address)
    for i, code in enumerate(signature):
        assert pointers[i] - pointers[0] == getattr(layout, f"p{i}").offset
        assert CTYPES[code].from_address(pointers[i]).value == values[i]


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(struct.error):
        driver.Arguments("Pi").pack(1)
    with pytest.raises(struct.error):
        driver.Arguments("Pi").pack(1, 2.5)


SOURCE = """
extern "C" __global__ void fill(int* out, int n, float value) {
    extern __shared__ int scratch[];
    scratch[blockDim.x] = 0;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (int)value + blockIdx.x;
}
extern "C" __global__ void ranks(int* out) {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) out[blockIdx.x] = rank;
}
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    return compiler.compile_text("t.cu", {"t.cu": SOURCE}, {}, arch, tmp_path_factory.mktemp("cache")).image


def launch_fill(kernel, out, shared_bytes=1024, value=7.0, grid=4, **options):
    prepared = kernel.prepare((grid, 1, 1), (32, 1, 1), shared_bytes, **options)
    prepared(driver.current_stream(0), (out.data_ptr(), out.numel(), value))


@pytest.mark.gpu
@pytest.mark.parametrize("cooperative", [True, False])
def test_launch(image, cooperative):
    kernel = driver.load_kernel(image, "fill", "Pif", 0)
    # A smaller launch must not take away what a larger one was allowed.
    for shared_bytes in (1024, 60_000, 100_000, 60_000, 100_000):
        out = torch.zeros(128, dtype=torch.int32, device="cuda")
        launch_fill(kernel, out, shared_bytes, cooperative=cooperative)
        assert out.view(4, 32)[:, 0].tolist() == [7, 8, 9, 10]
    assert kernel is driver.load_kernel(image, "fill", "Pif", 0)


@pytest.mark.gpu
def test_memory_is_cleared_before_the_launch(image):
    prepared = driver.load_kernel(image, "fill", "Pif", 0).prepare((4, 1, 1), (32, 1, 1), 1024)
    out = torch.full((128,), -1, dtype=torch.int32, device="cuda")
    prepared(driver.current_stream(0), (out.data_ptr(), 40, 7.0), (out.data_ptr(), 120))
    assert out[:40].unique().tolist() == [7, 8]
    assert out[40:120].unique().tolist() == [0]
    assert out[120:].unique().tolist() == [-1]


@pytest.mark.gpu
def test_launch_from_another_thread_and_stream(image):
    from threading import Thread

    kernel = driver.load_kernel(image, "fill", "Pif", 0)
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            launch_fill(kernel, out)
            torch.cuda.current_stream().synchronize()

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert out.view(4, 32)[:, 0].tolist() == [7, 8, 9, 10]


@pytest.mark.gpu
def test_launch_in_a_captured_graph(image):
    kernel = driver.load_kernel(image, "fill", "Pif", 0)
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_fill(kernel, out)
    out.zero_()
    graph.replay()
    assert out.view(4, 32)[:, 0].tolist() == [7, 8, 9, 10]


@pytest.mark.gpu
def test_launch_a_cluster(image):
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("runs on GPUs of compute capability 9.0 and up, which have clusters")
    kernel = driver.load_kernel(image, "ranks", "P", 0)
    out = torch.full((8,), -1, dtype=torch.int32, device="cuda")
    prepared = kernel.prepare((8, 1, 1), (32, 1, 1), 0, cooperative=False, cluster=(4, 1, 1))
    prepared(driver.current_stream(0), (out.data_ptr(),))
    assert out.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.gpu
def test_a_refused_launch_says_why(image):
    kernel = driver.load_kernel(image, "fill", "Pif", 0)
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    with pytest.raises(RuntimeError, match=r"driver failed while launching fill with .* blocks"):
        launch_fill(kernel, out, grid=1_000_000, cooperative=True)
    with pytest.raises(RuntimeError, match="driver failed while setting CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED"):
        launch_fill(kernel, out, shared_bytes=10_000_000)
    with pytest.raises(RuntimeError, match="driver failed while finding absent"):
        driver.load_kernel(image, "absent", "P", 0)


@pytest.mark.gpu
def test_host_time_of_a_launch(image):
    """Median of 1,000 launches as a layer makes them; 10 us leaves a deep network's host ahead of its GPU.

    11 and 17 us were seen before launches were prepared; tests/gpu/host_time.py says what of it is the driver's.
    """
    prepared = driver.load_kernel(image, "fill", "Pif", 0).prepare((4, 1, 1), (32, 1, 1), 1024)
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    prepared(driver.current_stream(0), (out.data_ptr(), 128, 7.0))
    times = []
    for i in range(1000):
        started = time.perf_counter()
        prepared(driver.current_stream(0), (out.data_ptr(), 128, 7.0))
        times.append(time.perf_counter() - started)
        if i % 100 == 0:
            torch.cuda.synchronize()
    assert sorted(times)[500] < 10e-6
