"""The ways to run one simple recurrent layer that the throughput experiment compares, behind one shape of call.

Each rival computes h_t = f(x_t + U h_{t-1}) over x [T, B, H] and, for the pass `both`, the gradients of x and U for a
given gradient of the output. Activations differ only because FlashRNN offers tanh alone; each rival is checked against
the reference with its own activation.

| backend | what runs |
|---|---|
| persistent, reference, cudnn | `prnn_ext.rnn` with that backend |
| gemm | the reference captured in a CUDA graph: one GEMM per time step and no host time |
| torch | `torch.nn.RNN` on CPU, with the identity as its input matrix |
| flashrnn | FlashRNN's fused Elman cell, where it is installed |
"""

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import prnn_ext

Outputs = tuple[Tensor, ...]

FLASHRNN_SHAPES = ((1152, 4), (1152, 16))
"""Hidden size and mini-batch: it compiles by nvcc for about 90 s a shape, so never over a grid."""


class RivalFailedError(RuntimeError):
    """A rival that should run here did not build or run; the message says why."""


@dataclass(frozen=True)
class Problem:
    """One layer's inputs: x [T, B, H], weight_hh [H, H] and the gradient of the output [T, B, H], in one dtype."""

    x: Tensor
    weight_hh: Tensor
    grad_output: Tensor

    @staticmethod
    def draw(time_steps: int, batch_size: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> "Problem":
        """Fresh random inputs; U is orthogonal times 0.9, so that errors neither explode nor die over T."""
        generator = torch.Generator().manual_seed(time_steps * 131 + batch_size * 17 + hidden_size)
        shape = (time_steps, batch_size, hidden_size)
        square = torch.randn(hidden_size, hidden_size, generator=generator)
        if device.type == "cuda":
            square = square.to(device)
        orthogonal = 0.9 * torch.linalg.qr(square).Q
        x = torch.randn(shape, generator=generator)
        grad = torch.randn(shape, generator=generator)
        return Problem(*(tensor.to(device, dtype).contiguous() for tensor in (x, orthogonal, grad)))

    def to(self, dtype: torch.dtype) -> "Problem":
        return Problem(self.x.to(dtype), self.weight_hh.to(dtype), self.grad_output.to(dtype))


@dataclass(frozen=True)
class Rival:
    """A backend's two calls. `forward` returns (output,), `both` returns (output, grad_x, grad_weight_hh)."""

    backend: str
    activation: str
    forward: Callable[[], Outputs]
    both: Callable[[], Outputs]


def unavailable(backend: str, problem: Problem) -> list[str]:
    """Why this rival cannot run this problem here; empty when it can."""
    on_cuda = problem.x.is_cuda
    if backend in ("persistent", "cudnn", "reference"):
        return prnn_ext.unsupported_reasons(problem.x, problem.weight_hh, activation="relu", backend=backend)
    if backend == "gemm":
        return [] if on_cuda else ["gemm is captured in a CUDA graph and x is on the CPU; use reference there"]
    if backend == "torch":
        return ["torch is the CPU's rival and x is on a GPU; use cudnn there"] if on_cuda else []
    if backend == "flashrnn":
        if not on_cuda:
            return ["flashrnn runs on GPUs only and x is on the CPU"]
        return _flashrnn_reasons(problem)
    raise ValueError(f"unknown backend {backend!r}; choose from persistent, cudnn, gemm, reference, torch, flashrnn")


def _flashrnn_reasons(problem: Problem) -> list[str]:
    _, batch_size, hidden_size = problem.x.shape
    reasons = []
    if importlib.util.find_spec("flashrnn") is None:
        reasons.append("flashrnn is not installed: python -m experiments.throughput.flashrnn_mend --help says how")
    if missing := [tool for tool in ("nvcc", "ninja") if shutil.which(tool) is None]:
        reasons.append(f"flashrnn compiles itself at first use and {' and '.join(missing)} is not on PATH")
    if problem.x.dtype != torch.bfloat16:
        reasons.append(f"flashrnn is compared in bfloat16, not {problem.x.dtype}")
    if (hidden_size, batch_size) not in FLASHRNN_SHAPES:
        shapes = " and ".join(f"{hidden} x {batch}" for hidden, batch in FLASHRNN_SHAPES)
        reasons.append(f"flashrnn compiles for 90 s a shape and is compared at {shapes} alone")
    return reasons


def rival(backend: str, problem: Problem) -> Rival:
    """The calls of one backend on one problem, built and captured where it must be.

    Raises `RivalFailedError` where a rival of others does not build.
    """
    if backend == "gemm":
        inner = _ours("reference", problem)
        return Rival("gemm", "relu", _captured(inner.forward), _captured(inner.both))
    if backend == "torch":
        return _torch_rnn(problem)
    if backend == "flashrnn":
        return _flashrnn(problem)
    return _ours(backend, problem)


def reference_outputs(problem: Problem, activation: str) -> Outputs:
    """(output, grad_x, grad_weight_hh) from the reference backend in the problem's own dtype."""
    return _ours("reference", problem, activation).both()


def _ours(backend: str, problem: Problem, activation: str = "relu") -> Rival:
    x = problem.x.clone().requires_grad_()
    weight_hh = problem.weight_hh.clone().requires_grad_()

    def forward() -> Outputs:
        with torch.no_grad():
            return (prnn_ext.rnn(problem.x, problem.weight_hh, activation=activation, backend=backend)[0],)

    def both() -> Outputs:
        output, _ = prnn_ext.rnn(x, weight_hh, activation=activation, backend=backend)
        return output.detach(), *torch.autograd.grad(output, (x, weight_hh), problem.grad_output)

    return Rival(backend, activation, forward, both)


def _torch_rnn(problem: Problem) -> Rival:
    hidden_size = problem.x.shape[-1]
    layer = torch.nn.RNN(hidden_size, hidden_size, nonlinearity="relu", bias=False).to(
        problem.x.device, problem.x.dtype
    )
    with torch.no_grad():
        layer.get_parameter("weight_hh_l0").copy_(problem.weight_hh)
        layer.get_parameter("weight_ih_l0").copy_(torch.eye(hidden_size))
    x = problem.x.clone().requires_grad_()

    def forward() -> Outputs:
        with torch.no_grad():
            return (layer(problem.x)[0],)

    def both() -> Outputs:
        output, _ = layer(x)
        return output.detach(), *torch.autograd.grad(
            output, (x, layer.get_parameter("weight_hh_l0")), problem.grad_output
        )

    return Rival("torch", "relu", forward, both)


def _flashrnn(problem: Problem) -> Rival:
    try:
        made = _flashrnn_calls(problem)
        made.both()
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        *_, last = str(error).strip().splitlines() or [type(error).__name__]
        raise RivalFailedError(f"flashrnn is installed and did not build or run: {last}") from error
    return made


def _flashrnn_calls(problem: Problem) -> Rival:
    from flashrnn import flashrnn  # type: ignore[import-not-found]

    # FlashRNN takes x as [B, T, gates, heads, H], the matrix as [gates, heads, H out, H in]: one gate, one head here.
    def layout(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1)[:, :, None, None].contiguous()

    hidden_size = problem.x.shape[-1]
    x = layout(problem.x).requires_grad_()
    recurrent = problem.weight_hh[None, None].contiguous().requires_grad_()
    bias = torch.zeros(1, 1, hidden_size, dtype=problem.x.dtype, device=problem.x.device)
    grad_output = problem.grad_output.transpose(0, 1)[:, :, None].contiguous()

    def run(x_input: Tensor, weight: Tensor) -> Tensor:
        states, _ = flashrnn(
            x_input, weight, bias, states=None, function="elman", backend="cuda_fused", dtype="bfloat16"
        )
        return states[0]

    def back(tensor: Tensor) -> Tensor:
        return tensor.reshape(tensor.shape[0], tensor.shape[1], hidden_size).transpose(0, 1)

    def forward() -> Outputs:
        with torch.no_grad():
            return (back(run(x, recurrent)),)

    def both() -> Outputs:
        hidden = run(x, recurrent)
        grad_x, grad_weight = torch.autograd.grad(hidden, (x, recurrent), grad_output)
        return back(hidden.detach()), back(grad_x), grad_weight[0, 0]

    return Rival("flashrnn", "tanh", forward, both)


def _captured(call: Callable[[], Outputs]) -> Callable[[], Outputs]:
    """`call` captured in a CUDA graph; replaying writes the same output tensors."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay
