"""The peak arithmetic and memory bandwidth of GPUs, from NVIDIA's data sheets."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuDataSheet:
    """A GPU type with the memory bandwidth and the peak arithmetic of its data sheet, dense."""

    name: str
    device_names: str
    """A pattern of the names that torch has for GPUs of this type."""
    bandwidth: float
    """The memory bandwidth, TB/s."""
    float32: float
    """The peak of float32 matrix products, TFLOP/s."""
    tf32: float | None
    """The peak of products by precision=tf32, TFLOP/s; None for a GPU without them."""
    lower: float
    """The peak of bfloat16 products, or of float16 without bfloat16 support, TFLOP/s."""

    def peak(self, precision: str) -> float | None:
        """Return the peak of products in a recipe's precision, TFLOP/s; None if it is not known."""
        if precision == "bfloat16" and self.tf32 is None:  # older than both
            return None
        peaks = {"float32": self.float32, "tf32": self.tf32}
        return (peaks | dict.fromkeys(("bfloat16", "float16"), self.lower)).get(precision)


GPUS = (
    GpuDataSheet("V100 SXM2", r"Tesla V100-SXM2-\d+GB", 0.9, 15.7, None, 125),
    GpuDataSheet("A100 SXM 80 GB", r"NVIDIA A100-SXM4-80GB", 2.039, 19.5, 156, 312),
    GpuDataSheet("H100 SXM", r"NVIDIA H100 80GB HBM3", 3.35, 67, 494.7, 989),
    GpuDataSheet("H200 SXM", r"NVIDIA H200", 4.8, 67, 494.7, 989),
)


def known_gpu(device_name: str) -> GpuDataSheet | None:
    """Return the GPU type that torch gives this name, or None for any other device.

    >>> known_gpu("NVIDIA H200").peak("bfloat16"), known_gpu("NVIDIA H100 PCIe")
    (989, None)
    """
    return next((gpu for gpu in GPUS if re.fullmatch(gpu.device_names, device_name)), None)
