"""The hardware of this process: its GPU, or its share of the processor."""

import os
import platform
from contextlib import suppress
from pathlib import Path

import torch
from torch import get_num_threads

from lsgd.errors import Refused
from lsgd.job.launcher import cores, detect
from lsgd.job.memory import keep_freed
from lsgd.job.numa import bind, pci_address

DRIVER = Path("/proc/driver/nvidia/version")
"""The file that is there where NVIDIA's driver is loaded."""

DEVICES = Path("/dev")


TF32 = (8, 0)
"""The compute capability of the first GPUs that have it, A100 among them."""


def pick_device(name: str, *, numa: bool = False) -> torch.device:
    """The device of this process: with `auto` and CUDA, the GPU of its local rank; else the CPU,
    whose freed memory the process keeps from then on.

    With `numa` it is bound to the cores next to its GPU.
    Raises Refused rather than train on the CPU of a machine whose GPUs torch cannot use.
    """
    launch = detect()
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        if name == "auto" and torch.version.cuda and DRIVER.exists() and _shown():
            raise Refused(
                f"this machine has NVIDIA's driver, and torch {torch.__version__} with CUDA "
                f"{torch.version.cuda} finds no GPU that it can use; update the driver, or write "
                "device=cpu if the CPU is meant",
                here_only=True,
            )
        keep_freed()
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Refused(
            "device=cuda, but torch finds no usable GPU here; write device=cpu or device=auto",
            here_only=True,
        )
    gpus = torch.cuda.device_count()
    # Launchers may show each process a GPU of its own, which is number 0 to it.
    own = gpus == 1 and "CUDA_VISIBLE_DEVICES" in os.environ
    if launch.local_size > gpus and not own:
        raise Refused(
            f"{launch.local_size} processes on a machine with {gpus} GPUs; start at most one per "
            "GPU (a process hosts as many workers as it takes)",
            here_only=True,
        )
    device = torch.device("cuda", 0 if own else launch.local_rank)
    torch.cuda.set_device(device)
    if numa:
        bind(pci_address(torch.cuda.get_device_properties(device)))
    return device


PRESETS = {(9, 0): "h200", (8, 0): "a100", (7, 0): "v100"}
"""The file in conf/hardware of GPUs by their compute capability; of others, of the next below."""


def preset(device: torch.device) -> str:
    """The choice of `hardware` for this device."""
    if device.type == "cpu":
        return "cpu"
    here = torch.cuda.get_device_capability(device)
    return PRESETS[max((known for known in PRESETS if known <= here), default=min(PRESETS))]


def choose_kernels(device: torch.device, *, tf32: bool, repeats: bool) -> None:
    """Let this process compute in float32 as the recipe means it, and with kernels that repeat.

    float32 means float32 on every GPU, unless `tf32` is asked for: products whose factors are
    rounded to 10 bits. With `repeats` the same run twice is the same to the bit, which cuDNN's
    atomic sums would break; without, cuDNN times its algorithms for each shape.
    Raises Refused if `tf32` is asked of hardware that has none.
    """
    if tf32 and (device.type == "cpu" or torch.cuda.get_device_capability(device) < TF32):
        raise Refused(
            f"precision=tf32 is a number format of GPUs from A100 on, and this run is on "
            f"{device_name(device)}; write precision=float32",
            here_only=True,
        )
    if device.type == "cuda":
        # Each process of a machine compiles on its own cores; torch would take 32 for each.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(cores(detect())))
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = repeats
    torch.backends.cudnn.benchmark = not repeats


def _shown() -> bool:
    """Whether GPUs are meant for this process: not hidden, and in its container or job."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        return False
    for gpu in DEVICES.glob("nvidia[0-9]*"):
        with suppress(OSError), gpu.open("rb"):  # only opening shows what a control group forbids
            return True
    return False


def device_name(device: torch.device) -> str:
    """The hardware of a process: its GPU, or the CPU with the job's cores and its own threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    launch = detect()
    # The cores of the job on this machine, which its processes share.
    shared = cores(launch) * launch.local_size
    return f"{cpu()}, {shared} cores, threads per process: {get_num_threads()}"


def cpu() -> str:
    """The model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
