"""Facts about the machine, on which measurements depend."""

import os
import platform
from typing import Any

import torch

from lsgd.job.device import cpu, device_name
from lsgd.job.launcher import cores, detect_launch


def machine(device: torch.device) -> dict[str, Any]:
    """Return facts about this machine by name: CPU, cores, GPU if used, load and system."""
    return {
        "cpu": cpu(),
        "cores": cores(detect_launch()),
        "gpu": None if device.type == "cpu" else device_name(device),
        "load_average": os.getloadavg()[0],
        "threads_of_torch": torch.get_num_threads(),
        "system": platform.platform(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("MALLOC_", "OMP_", "MKL_"))
        },
    }
