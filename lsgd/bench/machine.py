"""The machine and the versions, on which a measurement depends besides the code."""

import os
import platform
from contextlib import suppress
from importlib import metadata
from typing import Any

import torch

from lsgd.job.device import cpu
from lsgd.job.launcher import cores, detect


def machine(device: torch.device) -> dict[str, Any]:
    """CPU, cores, GPU if it is used, and how busy the machine has been in the last minute."""
    return {
        "cpu": cpu(),
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


def versions(*peers: str) -> dict[str, str]:
    """The versions of Python, lsgd, what decides its speed and the packages `peers`, as far as they
    are installed; with a GPU that torch can use, those of CUDA, cuDNN and NCCL too."""
    # DALI's package is named for a release of CUDA.
    dali = {name for name in metadata.packages_distributions().get("nvidia", ()) if "dali" in name}
    names = ["lsgd", "torch", "torchvision", "pillow", "numpy", "hydra-core", "horovod"]
    installed = {"python": platform.python_version()}
    for name in (*names, *peers, *sorted(dali)):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    if torch.cuda.is_available():
        installed["CUDA"] = str(torch.version.cuda)
        installed["cuDNN"] = str(torch.backends.cudnn.version())
        if torch.distributed.is_nccl_available():
            installed["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return installed
