"""Facts about the machine and the installed versions, on which measurements depend."""

import os
import platform
from contextlib import suppress
from importlib import metadata
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


def versions(*peers: str) -> dict[str, str]:
    """Return the installed versions of Python, lsgd, its dependencies and the packages `peers`.

    Packages that are not installed are omitted. With a GPU that torch can use, it also has the
    versions of CUDA, cuDNN and NCCL.
    """
    # The name of DALI's package contains the CUDA release.
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
