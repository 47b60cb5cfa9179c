"""NCCL's kernels beside the grid: both must end, with the right numbers, and neither may wait for the other for long.

    PYTHONPATH=. torchrun --standalone --nproc-per-node 2 tests/gpu/nccl_beside.py

Each rank runs layers forward and backward on one stream and all-reduces gradients of 64 MiB on another, first apart,
then together, as data-parallel training does. Sixteen multiprocessors are left to NCCL (docs/KERNEL.md); a grid that
took all would start only once NCCL's kernel has ended and the overlap would be lost. Printed: milliseconds apart and
together; the outputs and the sums are compared bit for bit with those made apart.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import prnn_ext

LAYERS, ROUNDS, NUMBERS = 12, 10, 16 * 2**20


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    x = torch.randn(350, 4, 1152, device="cuda").bfloat16()
    weight = (torch.randn(1152, 1152, device="cuda") / 50).bfloat16()
    gradient = torch.full((NUMBERS,), float(rank + 1), device="cuda")
    side = torch.cuda.Stream()

    def layers() -> tuple[torch.Tensor, torch.Tensor]:
        leaf = weight.clone().requires_grad_()
        h = x
        for _ in range(LAYERS):
            h, _ = prnn_ext.rnn(h, leaf, activation="tanh", backend="persistent")
        return h.detach(), torch.autograd.grad(h, leaf, x)[0]

    def reduce() -> torch.Tensor:
        with torch.cuda.stream(side):
            total = gradient.clone()
            for _ in range(8):
                dist.all_reduce(total)
                total /= dist.get_world_size()
        return total

    def milliseconds(run) -> tuple[float, list]:
        times = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            started = time.perf_counter()
            found = run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) * 1e3)
        return sorted(times)[ROUNDS // 2], found

    alone, expected = milliseconds(layers)
    reduced, total = milliseconds(reduce)
    together, found = milliseconds(lambda: (reduce(), layers()))
    prnn_ext.check()
    assert torch.equal(found[0], total)
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected, strict=True))
    mean = sum(range(1, dist.get_world_size() + 1)) / dist.get_world_size()
    assert torch.allclose(total, torch.full_like(total, mean))
    row = {"ranks": dist.get_world_size(), "layers_ms": alone, "all_reduce_ms": reduced, "together_ms": together}
    if rank == 0:
        print(f"layers {alone:.2f} ms, all-reduce {reduced:.2f} ms, together {together:.2f} ms "
              f"(one after the other {alone + reduced:.2f}, perfect overlap {max(alone, reduced):.2f})")  # fmt: skip
        if path := os.environ.get("PRNN_RESULT"):
            Path(path).write_text(json.dumps(row, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
