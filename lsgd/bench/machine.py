"""What a measurement depends on besides the code: the machine and the versions."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lsgd.launcher import cores, detect


def machine(device: torch.device) -> dict[str, Any]:
    """CPU, cores, GPU if it is used, and how busy the machine has been in the last minute."""
    return {
        "cpu": _cpu(),
        "cores": cores(detect()),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "load_average": os.getloadavg()[0],
        "threads_of_torch": torch.get_num_threads(),
        "system": platform.platform(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("MALLOC_", "OMP_", "MKL_"))
        },
    }


def versions() -> dict[str, str]:
    """Of Python, of lsgd and of what loads and decodes images, DALI only if it is installed."""
    # DALI's package is named for a release of CUDA.
    dali = {name for name in metadata.packages_distributions().get("nvidia", ()) if "dali" in name}
    names = ["lsgd", "torch", "torchvision", "pillow", "numpy", *sorted(dali)]
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
