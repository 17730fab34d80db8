"""The constants of cluster hardware, each with its source."""

from dataclasses import dataclass, fields, replace
from typing import Any

from lsgd.plan.allreduce import GpuServers, NetworkLink

GOYAL = "Goyal et al. 2017"


@dataclass(frozen=True)
class Constant:
    """A constant of a model: a number, its unit, and its source or "assumed" and the reason."""

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:.4g} {self.unit}".strip()


@dataclass(frozen=True)
class Hardware:
    """The constants of a cluster's hardware for modelling a step, without its GPUs' speed.

    Bandwidths are of one direction.
    """

    name: str
    """The description of the hardware."""
    network_bandwidth: Constant
    """The bandwidth of a server's network, Gbit/s."""
    network_latency: Constant
    """The latency of a message between servers, µs."""
    local_bandwidth: Constant
    """The bandwidth between the GPUs of a server, GB/s."""
    local_latency: Constant
    """The latency of a message between the GPUs of a server, µs."""
    host_bandwidth: Constant
    """The bandwidth between GPUs and host memory, GB/s."""
    host_latency: Constant
    """The latency of a copy between a GPU and host memory, µs."""
    nccl_from: Constant
    """The smallest buffer that is reduced between GPUs rather than on the host, kB."""
    spread: Constant
    """The standard deviation of a GPU's time per step, as a share of it."""
    allreduce: str
    """The name of the all-reduce algorithm, one of allreduce.ALGORITHMS."""
    fused: bool
    """Whether gradients are reduced in lsgd's buckets rather than tensor by tensor."""

    @property
    def cluster(self) -> GpuServers:
        """The network links of this hardware, in seconds and bytes per second."""
        return GpuServers(
            network=NetworkLink(
                self.network_latency.value * 1e-6, self.network_bandwidth.value * 1e9 / 8
            ),
            local=NetworkLink(self.local_latency.value * 1e-6, self.local_bandwidth.value * 1e9),
            host=NetworkLink(self.host_latency.value * 1e-6, self.host_bandwidth.value * 1e9),
            nccl_from=self.nccl_from.value * 1000,
        )

    def constants(self) -> dict[str, Constant]:
        """Return all constants of this hardware by name."""
        named = {entry.name.replace("_", " "): getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Constant)}

    def with_value(self, name: str, value: float, source: str) -> "Hardware":
        """Return a copy of this hardware with another value and source for one constant."""
        constant: Constant = getattr(self, name)
        changed: dict[str, Any] = {name: replace(constant, value=value, source=source)}
        return replace(self, **changed)


PAPER = Hardware(
    name="P100 of the paper, Big Basin",
    network_bandwidth=Constant(50, "Gbit/s", f"{GOYAL}, section 4: ConnectX-4"),
    network_latency=Constant(
        12.3023,
        "µs",
        "calibrated: the ring takes 3 times as long as halving-doubling on 32 servers "
        f"({GOYAL}, section 4)",
    ),
    local_bandwidth=Constant(
        20,
        "GB/s",
        "NVIDIA's Tesla P100 whitepaper: 4 NVLinks of 20; that a reduction uses one is assumed",
    ),
    local_latency=Constant(5, "µs", "assumed"),
    host_bandwidth=Constant(12, "GB/s", "assumed: 3/4 of the 15.75 of PCIe 3.0 x16"),
    host_latency=Constant(10, "µs", "assumed"),
    nccl_from=Constant(262.144, "kB", f"{GOYAL}, section 4: NCCL from 256 KB on"),
    spread=Constant(
        0.0910743,
        "",
        "calibrated: 12% from 8 to 352 P100, over which a step takes that much longer ("
        f"{GOYAL}, figure 7)",
    ),
    allreduce="hierarchical",
    fused=False,
)
"""32 to 44 Big Basin servers of 8 P100, with one all-reduce per tensor (161 of ResNet-50).
The latency between servers and the spread are fitted to what the paper reports, by
results/2026-11-22-plan-calibration/calibrate.py; nothing else is fitted."""

H200 = Hardware(
    name="as in NVIDIA's DGX H200",
    network_bandwidth=Constant(
        3200, "Gbit/s", "NVIDIA's DGX H200 data sheet: 8 ConnectX-7 of 400, one per GPU"
    ),
    network_latency=Constant(5, "µs", "assumed, for a message of NCCL's over RDMA"),
    local_bandwidth=Constant(450, "GB/s", "NVIDIA's H200 data sheet: NVLink, half of 900"),
    local_latency=Constant(5, "µs", "assumed"),
    host_bandwidth=Constant(48, "GB/s", "not used: no reduction on the host"),
    host_latency=Constant(10, "µs", "not used: no reduction on the host"),
    nccl_from=Constant(0, "kB", "lsgd leaves every buffer to NCCL"),
    spread=Constant(
        0.025,
        "",
        "computed: NVIDIA's DeepLearningExamples (ResNet-50, PyTorch, TF32) train 7248 images/s on "
        "8 A100 and 938 on one, of which 3.5% is taken for the slowest of 8",
    ),
    allreduce="halving-doubling",
    fused=True,
)
"""Servers like NVIDIA's DGX H200, with gradients in lsgd's buckets."""
