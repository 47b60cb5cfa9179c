"""Where a step's cycles go: the kernel with PRNN_TRACE (prnn_ext/cuda/watch.cuh), and what its notes say.

    PYTHONPATH=. python tests/gpu/trace.py

At 1152 x 4 in bfloat16, with several first waits, medians over steps and blocks of the cycles (of one multiprocessor)

    wait     from a block's last product warp leaving its sums to its cells having passed the barrier
    cell     from the barrier to the publishing store
    trip     from that store to the words of the next step having arrived at the block's last product warp
    product  from there to that warp leaving its sums
    step     all four; notes cost a few per cent

and how often warps polled: all of them, and the last of each block. If the last one polls twice or more, the trip is
longer than it need be by about one poll, and a better moment for the first is worth looking for; the last line says
when the words came, counted from the warp's own sums, which is where `FIRST_WAIT` counts from.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch

from prnn_ext import driver, persistent, tiles
from tests.gpu.timed_launch import plan, random_arguments

STEPS, FROM = 512, 64


def noted(chosen: tiles.Tiles, extra: dict[str, int]) -> torch.Tensor:
    """[blocks, warps, steps, 4] of one launch, after one to warm up."""
    dtype = getattr(torch, chosen.dtype)
    x, weight = random_arguments(STEPS, chosen.batch_size, chosen.hidden_size, dtype)
    hidden = torch.rand_like(x)
    output, last = torch.empty_like(x), torch.empty_like(x[0])
    traced = ("PRNN_TRACE", STEPS), ("PRNN_TRACE_FROM", chosen.workspace_bytes)
    half = persistent._prepared(chosen, "clipped_relu", 0, (*extra.items(), *traced))
    notes = chosen.blocks * chosen.threads // 32 * STEPS * 4
    workspace = torch.zeros(chosen.workspace_bytes // 4 + notes, dtype=torch.int32, device="cuda")
    tensors = (x, weight, None, None, None, None, hidden if chosen.backward else None, output, last, workspace)
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    numbers = (*pointers, half.status_address, int(1e9), STEPS, chosen.batch_size, False)
    for _ in range(2):
        half.prepared(driver.current_stream(0), numbers, (workspace.data_ptr(), workspace.numel()))
    persistent.check()
    start = chosen.workspace_bytes // 4
    return workspace[start:].view(chosen.blocks, chosen.threads // 32, STEPS, 4).cpu().long()


def told(notes: torch.Tensor, product_warps: int) -> dict[str, Any]:
    """The durations of the module's text; differences of 32-bit clocks, which may wrap."""
    product, cell = notes[:, :product_warps, FROM:], notes[:, product_warps, FROM:]
    asked, arrived, left, polls = product.unbind(-1)
    passed, published = cell[..., 0], cell[..., 1]

    def since(later: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
        return (later - earlier + 2**31) % 2**32 - 2**31

    # Of each block and step, relative to the publishing store of the step before.
    before = published[:, None, :-1]
    arrived_after, slowest = since(arrived[:, :, 1:], before).max(1)
    left_after = since(left[:, :, 1:], before).max(1).values
    passed_after = since(passed[:, 1:], before[:, 0])
    step = since(published[:, 1:], before[:, 0])
    of_slowest = polls[:, :, 1:].gather(1, slowest[:, None])[:, 0]
    own_wait = since(arrived[:, :, 1:], left[:, :, :-1]).max(1).values

    def median(values: torch.Tensor) -> float:
        return values.double().median().item()

    def shares(values: torch.Tensor) -> list[float]:
        return [round((values == count).double().mean().item(), 3) for count in range(1, 6)]

    return {
        "trip": median(arrived_after),
        "product": median(left_after - arrived_after),
        "wait": median(passed_after - left_after),
        "cell": median(step - passed_after),
        "step": median(step),
        "asked_after_own_sums": median(since(asked[:, :, 1:], left[:, :, :-1])),
        "polls_of_all_1_to_5": shares(polls[:, :, 1:]),
        "polls_of_the_last_1_to_5": shares(of_slowest),
        "words_came_after_own_sums_10_50_90": [own_wait.double().quantile(share).item() for share in (0.1, 0.5, 0.9)],
    }


def main() -> None:
    rows = []
    for backward in (False, True):
        chosen = plan(1152, 4, backward=backward)
        for extra in ({}, *({"PRNN_FIRST_WAIT": wait} for wait in (200, 500, 600))):
            row = told(noted(chosen, extra), chosen.product_warps)
            rows.append({"backward": backward, "extra": extra, **row})
            print("backward" if backward else "forward", extra or "as it is", flush=True)
            for key, value in row.items():
                print(f"    {key}: {value}", flush=True)
    if path := os.environ.get("PRNN_RESULT"):
        Path(path).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
