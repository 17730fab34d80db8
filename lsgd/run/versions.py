"""The versions of the libraries and of the driver that a result comes from."""

import platform
from contextlib import suppress
from importlib import metadata

import torch

import lsgd
from lsgd.job.system import nvidia_driver

LIBRARIES = ("torchvision", "pillow", "numpy", "hydra-core", "horovod")
DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
"""The packages of DALI, which are named for releases of CUDA."""


def library_versions(*peers: str) -> dict[str, str]:
    """Return the versions of Python, lsgd, installed libraries and the packages `peers`.

    Packages that are not installed are omitted. With a GPU that torch can use, it also has the
    versions of CUDA, cuDNN, NCCL and the driver.
    """
    # The metadata of PyPI's torch do not name its build, as +cu130, and those of others do.
    installed = {
        "python": platform.python_version(),
        "lsgd": lsgd.__version__,
        "torch": torch.__version__,
    }
    for name in (*LIBRARIES, *peers, *DALI):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    if torch.cuda.is_available():
        installed["CUDA"] = str(torch.version.cuda)
        installed["cuDNN"] = str(torch.backends.cudnn.version())
        if torch.distributed.is_nccl_available():
            installed["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        if driver := nvidia_driver():
            installed["driver"] = driver
    return installed
