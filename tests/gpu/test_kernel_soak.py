"""A hundred thousand launches, alternating sizes and streams, all with the result of the first."""

import torch

import prnn_ext
from prnn_ext import persistent, tiles
from tests.prnn_ext.error_budget import make_case

LAUNCHES = 100_000


def test_soak() -> None:
    shapes = [(3, 4, 64), (5, 2, 100), (2, 9, 256)]
    work = []
    for T, B, H in shapes:
        case = make_case(T, B, H, torch.bfloat16, "cuda")
        chosen = tiles.choose_tiles(H, B, "bfloat16", False, persistent._gpu(0))
        arguments = (chosen, "clipped_relu", False, case.x, case.weight_hh, case.h_0, case.lengths)
        work.append((arguments, persistent.launch(*arguments)[0]))
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for number in range(LAUNCHES):
        arguments, expected = work[number % len(work)]
        output, _ = persistent.launch(*arguments)
        if number % 97 < len(work):
            differing += (output != expected).sum()
    prnn_ext.check()
    assert differing.item() == 0
