"""What joins GPUs inside a node and nodes to each other, as named presets. All of it is assumption, with its source.

A preset gives line rates from the vendor's data sheet and latencies from NCCL's own cost model; what of a line rate a
large all-reduce reaches is the assumed `efficiency`. Measured figures replace a preset through `fitted` (see
`communication.py`). Bandwidths are bytes a second in one direction, latencies seconds.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

NCCL = "NCCL 2.10 src/graph/tuning.cc, hwLat and baseLat"
GB = 1e9


@dataclass(frozen=True)
class Interconnect:
    """`gpu_bandwidth`: of one GPU inside its node; `node_bandwidth`: of all network cards of one node together.

    Latencies are of one hop. The ring's are those of NCCL's `simple` protocol, the tree's those of its `LL128`.
    """

    name: str
    gpus_per_node: int
    gpu_bandwidth: float
    node_bandwidth: float
    ring_start: float
    ring_gpu_latency: float
    ring_node_latency: float
    tree_start: float
    tree_gpu_latency: float
    tree_node_latency: float
    efficiency: float
    source: str
    measured: bool = False

    def record(self) -> dict[str, Any]:
        """As it is written beside every result that stands on it."""
        return asdict(self)


# Seconds: NCCL's table in microseconds. NVLink or PCIe inside the node; network between nodes.
_NVLINK = {"ring_start": 8.4e-6, "ring_gpu_latency": 3.4e-6, "tree_start": 4.4e-6, "tree_gpu_latency": 1.2e-6}
_PCIE = {"ring_start": 8.4e-6, "ring_gpu_latency": 5.7e-6, "tree_start": 4.4e-6, "tree_gpu_latency": 1.9e-6}
_NETWORK = {"ring_node_latency": 9.6e-6, "tree_node_latency": 8.5e-6}
# TCP through the kernel instead of RDMA.
_SOCKETS = {"ring_node_latency": 30e-6, "tree_node_latency": 30e-6}
_EFFICIENCY = 0.8


def _preset(name: str, gpu_bandwidth: float, node_bandwidth: float, source: str, **latencies: float) -> Interconnect:
    return Interconnect(
        name,
        gpus_per_node=8,
        gpu_bandwidth=gpu_bandwidth,
        node_bandwidth=node_bandwidth,
        efficiency=_EFFICIENCY,
        source=f"{source}; latencies: {NCCL}; {_EFFICIENCY:.0%} of the line rate reached: assumption",
        measured=False,
        **latencies,
    )


PRESETS = {
    preset.name: preset
    for preset in (
        _preset(
            "nvlink",
            450 * GB,
            450 * GB * 8,
            "NVLink 4 throughout (900 GB/s both ways a GPU, H200 data sheet), also between nodes (NVLink switch)",
            **_NVLINK,
            ring_node_latency=3.4e-6,
            tree_node_latency=1.2e-6,
        ),
        _preset(
            "ib-ndr",
            450 * GB,
            50 * GB * 8,
            "NVLink 4 in the node (H200 data sheet), one 400 Gb/s NDR InfiniBand card a GPU",
            **_NVLINK,
            **_NETWORK,
        ),
        _preset(
            "ib-hdr",
            450 * GB,
            25 * GB * 8,
            "NVLink 4 in the node (H200 data sheet), one 200 Gb/s HDR InfiniBand card a GPU",
            **_NVLINK,
            **_NETWORK,
        ),
        _preset(
            "ib-qdr",
            12 * GB,
            12 * GB,
            "the paper's cluster: 8 Titan X a node on PCIe 3 x16 (about 12 GB/s usable: assumption), one 12x QDR "
            "InfiniBand card a node (96 Gb/s of data)",
            **_PCIE,
            **_NETWORK,
        ),
        _preset(
            "ethernet-100",
            450 * GB,
            12.5 * GB,
            "NVLink 4 in the node (H200 data sheet), one 100 Gb/s Ethernet card a node, TCP (30 us a hop: assumption)",
            **_NVLINK,
            **_SOCKETS,
        ),
        _preset(
            "ethernet-25",
            450 * GB,
            3.125 * GB,
            "NVLink 4 in the node (H200 data sheet), one 25 Gb/s Ethernet card a node, TCP (30 us a hop: assumption)",
            **_NVLINK,
            **_SOCKETS,
        ),
    )
}


def preset(name: str, gpus_per_node: int | None = None) -> Interconnect:
    """A preset by name. Cards that come one a GPU follow `gpus_per_node`; a card a node stays one.

    Raises ValueError for an unknown name or a node without GPUs.
    """
    if name not in PRESETS:
        raise ValueError(f"interconnect {name!r} is unknown; choose from {', '.join(PRESETS)}.")
    found = PRESETS[name]
    if gpus_per_node is None or gpus_per_node == found.gpus_per_node:
        return found
    if gpus_per_node < 1:
        raise ValueError(f"{gpus_per_node} GPUs a node were given; a node has at least 1.")
    per_gpu = name in ("nvlink", "ib-ndr", "ib-hdr")
    share = gpus_per_node / found.gpus_per_node if per_gpu else 1.0
    return replace(found, gpus_per_node=gpus_per_node, node_bandwidth=found.node_bandwidth * share)
