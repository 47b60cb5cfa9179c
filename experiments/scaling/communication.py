"""How long an all-reduce takes: the alpha-beta model of ring and tree, and its fit to measured message sizes.

For S bytes on n GPUs, g a node, m = ceil(n / g) nodes (latencies a, bandwidth B, Thakur et al. 2005; NCCL's tuning.cc):

    ring   start + 2 (n - m) a_gpu + 2 (m - 1) a_node + 2 (n - 1) / n * S / B
    tree   start + 2 ((g - 1) a_gpu + log2(m) a_node) + 2 S / (0.83 B)

B is the slowest part of the way: a GPU's own link, or all cards of a node together, which every byte of the ring
crosses once. The double binary tree moves every byte twice and NCCL reaches 0.9 x 0.92 of the ring's bandwidth with it.
The faster of the two is taken, as NCCL does. One GPU needs no all-reduce.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.scaling.interconnects import Interconnect

TREE_SHARE = 0.9 * 0.92


@dataclass(frozen=True)
class Message:
    """A measured all-reduce: seconds for `size` bytes on `gpus` ranks of one node."""

    size: int
    gpus: int
    seconds: float


def all_reduce_seconds(size: float, gpus: int, net: Interconnect) -> float:
    """Seconds for `size` bytes on `gpus` GPUs that fill nodes one after the other."""
    return min(ring_seconds(size, gpus, net), tree_seconds(size, gpus, net))


def ring_seconds(size: float, gpus: int, net: Interconnect) -> float:
    """The ring's time; 0 on one GPU."""
    if gpus == 1:
        return 0.0
    nodes = math.ceil(gpus / net.gpus_per_node)
    latency = 2 * (gpus - nodes) * net.ring_gpu_latency + 2 * (nodes - 1) * net.ring_node_latency
    return net.ring_start + latency + 2 * (gpus - 1) / gpus * size / bandwidth(gpus, net)


def tree_seconds(size: float, gpus: int, net: Interconnect) -> float:
    """The double binary tree's time; 0 on one GPU."""
    if gpus == 1:
        return 0.0
    nodes = math.ceil(gpus / net.gpus_per_node)
    inside = min(gpus, net.gpus_per_node)
    latency = 2 * ((inside - 1) * net.tree_gpu_latency + math.log2(nodes) * net.tree_node_latency)
    return net.tree_start + latency + 2 * size / (TREE_SHARE * bandwidth(gpus, net))


def bandwidth(gpus: int, net: Interconnect) -> float:
    """Bytes a second that a large all-reduce moves past the slowest point, in one direction."""
    inside = net.gpu_bandwidth
    between = net.node_bandwidth if gpus > net.gpus_per_node else math.inf
    return net.efficiency * min(inside, between)


def fit(messages: Sequence[Message], net: Interconnect) -> Interconnect:
    """`net` with the latency and bandwidth inside a node replaced by what was measured there.

    Least squares on relative errors, so that small messages count as much as large ones: t = a + b S, with
    b = 2 (n - 1) / (n B) and a spread over the ring's hops. Raises ValueError for fewer than two message sizes.
    """
    if len({message.size for message in messages}) < 2:
        raise ValueError("An all-reduce was measured at fewer than two message sizes; give at least two.")
    # Unknowns: seconds a hop and 1 / bandwidth; each row is divided by the measured time.
    rows = [
        (2 * (m.gpus - 1) / m.seconds, 2 * (m.gpus - 1) / m.gpus * m.size / m.seconds) for m in messages if m.gpus > 1
    ]
    hop, per_byte = _least_squares(rows)
    return replace(
        net,
        gpu_bandwidth=1 / per_byte,
        efficiency=1.0,
        ring_start=0.0,
        ring_gpu_latency=hop,
        tree_start=0.0,
        # Measured times hold the library's own choice of algorithm: the tree must not undercut them.
        tree_gpu_latency=hop,
        source=f"inside the node: fitted to {len(rows)} measured all-reduces; between nodes: {net.source}",
        measured=True,
    )


def _least_squares(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(u, v) >= 0 that bring u p + v q closest to 1 over the rows (p, q)."""
    pp = sum(p * p for p, _ in rows)
    pq = sum(p * q for p, q in rows)
    qq = sum(q * q for _, q in rows)
    p1, q1 = sum(p for p, _ in rows), sum(q for _, q in rows)
    determinant = pp * qq - pq * pq
    u, v = (p1 * qq - q1 * pq) / determinant, (q1 * pp - p1 * pq) / determinant
    if u < 0:
        u, v = 0.0, q1 / qq
    if v <= 0:
        raise ValueError("The measured all-reduces do not grow with message size; measure again on an idle machine.")
    return u, v
