"""Sums that each rank keeps for itself, in a checkpoint that rank 0 alone writes: a row a rank.

A run that is gone on with on as many ranks gives each its own row again, so that the sums come out bit for bit; on
another number of ranks the first takes the sum of all rows.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor


def gather_rows(values: Float[Tensor, "*shape"]) -> list[Any]:
    """The ranks' values as nested lists, by rank; every rank must call it, with the same shape."""
    rows: list[Any] = [values.tolist()]
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, values.tolist())
    return rows


def own_row(rows: list[Any]) -> Float[Tensor, "*shape"]:
    """This rank's share of what was gathered: float64, on the CPU."""
    world_size, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    every = torch.tensor(rows, dtype=torch.float64)
    if len(rows) == world_size:
        return every[rank]
    return every.sum(0) if rank == 0 else torch.zeros_like(every[0])
