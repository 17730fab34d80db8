"""The hardware of this process: its accelerator, or its share of the CPU.

Everything that differs between kinds of devices is handled here, by torch.accelerator and by the
module that torch has for the kind. To torch, ROCm's GPUs are CUDA devices. What only NVIDIA has,
TF32 and presets, is guarded by `is_nvidia`.
"""

import ctypes
import os
import platform
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing import get_start_method, set_start_method
from pathlib import Path
from threading import Lock, current_thread, main_thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, get_num_threads

from lsgd.errors import UsageError
from lsgd.job.launcher import FIRST_GPU, Launch, cores, detect_launch
from lsgd.job.numa import bind_near_device, pci_address
from lsgd.job.system import bind_to, is_given_gpu, peak_memory, usable_cores
from lsgd.metric_sums import widest_float

DRIVER = Path("/proc/driver/nvidia/version")
"""The file that exists where NVIDIA's driver is loaded."""

DEVICES = Path("/dev")

SHARING_HOST_MEMORY = ("cpu", "mps")
"""The types of devices that read and write the memory of the host without copies of it."""

TF32 = (8, 0)
"""The lowest compute capability of GPUs with TF32, that of the A100."""

CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE = (
    CUDA_VISIBLE,
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
"""The variables by which launchers restrict a process to one GPU, which is then its number 0."""


def pick_device(name: str, *, numa: bool = False) -> torch.device:
    """Return the device of this process: the accelerator of its local rank, or the CPU.

    With `auto` it is the accelerator if torch finds any. On the CPU a command keeps its freed
    memory from then on. With `numa` the process is bound to the cores next to its GPU. Raises
    UsageError rather than train on the CPU of a machine whose GPUs torch cannot use.
    """
    launch = detect_launch()
    if name != "cpu":
        _show_own_mig_slice(launch)
    kind = _accelerator(name)
    if kind is None and name in ("auto", "cpu"):
        if name == "auto" and torch.version.cuda and DRIVER.exists() and is_given_gpu(DEVICES):
            raise UsageError(
                f"this machine has NVIDIA's driver, and torch {torch.__version__} with CUDA "
                f"{torch.version.cuda} finds no GPU that it can use; update the driver, or write "
                "device=cpu if the CPU is meant",
                is_local=True,
            )
        keep_freed_memory()
        return torch.device("cpu")
    if kind is None:
        raise UsageError(
            f"device={name}, but torch finds no usable GPU of that kind here; write device=cpu or "
            "device=auto",
            is_local=True,
        )
    gpus = _module(kind).device_count()
    own = gpus == 1 and any(variable in os.environ for variable in VISIBLE)
    if launch.local_size > gpus and not own:
        raise UsageError(
            f"{launch.local_size} processes on a machine with {gpus} GPUs; start at most one per "
            "GPU (a process hosts as many workers as it takes)",
            is_local=True,
        )
    first = int(os.environ.get(FIRST_GPU, "0"))
    device = torch.device(kind, 0 if own else (first + launch.local_rank) % gpus)
    torch.accelerator.set_device_index(device)
    if numa and kind == "cuda":
        bind_near_device(pci_address(torch.cuda.get_device_properties(device)))
    return device


def _show_own_mig_slice(launch: Launch) -> None:
    """Restrict this process to one of the MIG slices of a GPU that its job has on the machine.

    CUDA shows a process the first of several slices alone, so that all processes would share it.
    """
    slices = [each for each in os.environ.get(CUDA_VISIBLE, "").split(",") if each]
    if len(slices) < 2 or not all(each.startswith("MIG-") for each in slices):
        return
    if launch.local_size > len(slices):
        raise UsageError(
            f"{launch.local_size} processes on a machine with {len(slices)} MIG slices in "
            f"{CUDA_VISIBLE}; start at most one per slice (a process hosts as many workers as it "
            "takes)",
            is_local=True,
        )
    first = int(os.environ.get(FIRST_GPU, "0"))
    os.environ[CUDA_VISIBLE] = slices[(first + launch.local_rank) % len(slices)]


def _accelerator(name: str) -> str | None:
    """Return the type, such as cuda, of the accelerator that a device setting selects, or None."""
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found.type if found else None
    return name if name != "cpu" and _module(name).is_available() else None


def _module(kind: str) -> Any:
    """Return torch's module for a kind of device, such as torch.cuda."""
    return torch.get_device_module(kind)


def device_count(device: torch.device) -> int:
    """Return how many devices of this one's type, such as CUDA GPUs, this process sees."""
    return int(_module(device.type).device_count())


def is_nvidia(device: torch.device) -> bool:
    """Return whether the device is an NVIDIA GPU: a CUDA device, and torch is not a ROCm build."""
    return device.type == "cuda" and torch.version.hip is None


# --- Asynchronous work of an accelerator ---------------------------------------------------------


def needs_pinned_memory(device: torch.device) -> bool:
    """Return whether asynchronous copies to and from the device need pinned host memory.

    A Mac's GPU shares the memory of the host: an asynchronous copy to it reads the host's pages
    when it runs, when they may hold other values. So only where this is true, a copy to the device
    may be asynchronous.
    """
    return device.type not in SHARING_HOST_MEMORY


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to the device without blocking the host; on the CPU return it unchanged.

    A GPU copies asynchronously from pinned memory only. From any other, the host waits until the
    GPU has finished all earlier work, and a step counts that as a wait for data. A Mac's GPU is
    always waited for.
    """
    if device.type == "cpu":
        return tensor
    pinned = needs_pinned_memory(device)
    return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)


def arrays_to_device(values: NDArray, device: torch.device) -> Tensor:  # type: ignore[type-arg]
    """Copy a numpy array to the device as a tensor, without blocking the host."""
    return to_device(torch.from_numpy(values), device)


def to_device_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy host tensors of one dtype in one transfer, as `to_device` does, without waiting for it.

    For the CPU they are returned as they are.
    """
    if device.type == "cpu":
        return list(tensors)
    sizes = [tensor.numel() for tensor in tensors]
    pinned = needs_pinned_memory(device)
    flat = torch.empty(sum(sizes), dtype=tensors[0].dtype, device="cpu", pin_memory=pinned)
    torch.cat([tensor.flatten() for tensor in tensors], out=flat)
    parts = flat.to(device, non_blocking=pinned).split(sizes)
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy a device's tensors to host memory with one wait; the CPU's are returned as they are."""
    device = tensors[0].device
    if device.type == "cpu":
        return list(tensors)
    copies = [
        torch.empty_like(tensor, device="cpu", pin_memory=needs_pinned_memory(device)).copy_(
            tensor, non_blocking=True
        )
        for tensor in tensors
    ]
    synchronize(device)
    return copies


def new_event(device: torch.device, *, timed: bool = False) -> Any:
    """Create an event of the device, like torch.cuda.Event; `timed` enables timing."""
    return _module(device.type).Event(enable_timing=timed)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work; return at once on the CPU."""
    if device.type == "mps":  # of which a machine has one
        torch.mps.synchronize()
    elif device.type != "cpu":
        # A thread begins with device 0 as its current one, whatever its process uses.
        _module(device.type).synchronize(device)


# --- Memory --------------------------------------------------------------------------------------


def empty_cache(device: torch.device) -> None:
    """Release the unused memory in torch's cache of the device; do nothing on the CPU."""
    if device.type != "cpu":
        _module(device.type).empty_cache()


def reset_peak_device_memory(device: torch.device) -> None:
    """Reset torch's record of peak memory on a device; do nothing for the CPU or a Mac's GPU."""
    if device.type not in ("cpu", "mps"):
        _module(device.type).reset_peak_memory_stats(device)


def peak_device_memory(device: torch.device) -> int:
    """Return the most bytes of accelerator memory that torch has reserved since the last reset.

    For a Mac's GPU it is the memory allocated now.
    """
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())
    return int(_module(device.type).max_memory_reserved(device))


def memory_statistics(device: torch.device) -> dict[str, float]:
    """Return the peak of this process's memory, in MiB, and of a GPU its allocation retries.

    On the CPU it is the peak of resident memory since the process started, and on a GPU that of the
    memory which torch has reserved since the last reset. A retry follows an allocation that found
    no memory: torch frees its cache and tries again. Nothing waits for the device.
    """
    peak = peak_memory() if device.type == "cpu" else peak_device_memory(device)
    found = {"peak_memory_mb": peak / 2**20}
    if device.type == "cuda":
        found["memory_retries"] = torch.cuda.memory_stats(device)["num_alloc_retries"]
    return found


def total_device_memory(device: torch.device) -> int:
    """Return the total bytes of an accelerator's memory, those used by other processes included."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return int(_module(device.type).get_device_properties(device).total_memory)


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""The parameters of mallopt for returning free memory, and for blocks mapped on their own.

The first is the free memory from which on some goes back to the system; the second is the size from
which on a block is mapped directly from the system.
"""
NEVER, LARGEST = 2**31 - 1, 2**26
"""The values of these parameters in bytes: never trim; 64 MiB."""


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next training step, which needs as much again.

    By default glibc returns blocks and maps them anew, page by page: 44 thousand page faults in a
    step of ResNet-50 on 32 images of 64 x 64, which this reduces to 53. Blocks of 64 MiB and more
    stay mapped from the system, since a kept block does not always fit the next request: at 224 x
    224 a step takes 0.77 times as long with 1.12 times the peak, and would take 0.71 times with
    1.16 times the peak if all were kept (results/2026-11-25-heap). Nothing changes where the
    environment decides (MALLOC_…, GLIBC_TUNABLES), with another C library, and in another program
    that calls `lsgd.api`: glibc cannot return to its own limits.
    """
    if _guests.present:
        return
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(TRIM_THRESHOLD, NEVER)
        library.mallopt(MMAP_THRESHOLD, LARGEST)


# --- Number formats and kernels ------------------------------------------------------------------

PRESETS = {(9, 0): "h200", (8, 0): "a100", (7, 0): "v100"}
"""The file in conf/hardware for NVIDIA GPUs, by the lowest compute capability that takes it."""


def preset(device: torch.device) -> str:
    """Return the name of the `hardware` preset, such as a100, for the CPU or an NVIDIA GPU."""
    if device.type == "cpu":
        return "cpu"
    here = torch.cuda.get_device_capability(device)
    return PRESETS[max((known for known in PRESETS if known <= here), default=min(PRESETS))]


def choose_kernels(device: torch.device, *, precision: str, deterministic: bool) -> None:
    """Set this process's matmul precision, and select deterministic or autotuned kernels.

    float32 means float32 on every GPU, unless the precision is tf32: products whose factors are
    rounded to 10 bits. With `deterministic` two runs are equal to the bit, which cuDNN's atomic
    sums would break; without, cuDNN times its algorithms for each shape. Raises UsageError if the
    hardware lacks the number format.
    """
    tf32 = precision == "tf32"
    if tf32 and not (is_nvidia(device) and torch.cuda.get_device_capability(device) >= TF32):
        raise UsageError(
            f"precision=tf32 is a number format of NVIDIA's GPUs from A100 on, and this run is on "
            f"{device_name(device)}; write precision=float32",
            is_local=True,
        )
    if precision == "float64" and widest_float(device) != torch.float64:
        raise UsageError(
            f"precision=float64, and {device_name(device)} has no such numbers; write "
            "precision=float32 or device=cpu",
            is_local=True,
        )
    if device.type != "cpu":
        # Each process of a machine compiles on its own cores; torch would start up to 32 workers.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(cores(detect_launch())))
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic


KERNEL_FLAGS = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "benchmark"),
)
"""The flags that choose_kernels sets."""


ENVIRONMENT = ("HOROVOD_", "MLFLOW_", "TORCHINDUCTOR_")
"""The prefixes of environment variables that a training, or what it imports, sets."""


class _SharedContext:
    """A context of the whole process: of overlapping ones, the last to end restores all.

    They overlap in several threads, for example. The first to begin opens what `make` returns.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self.make, self.present, self._lock = make, 0, Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self.present:
                self._opened = self.make()
                self._opened.__enter__()
            self.present += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.present -= 1
            if not self.present:
                self._opened.__exit__(None, None, None)


def restore_process_settings() -> AbstractContextManager[None]:
    """Restore at the end of this context the process-wide settings that a training has changed.

    lsgd is a guest of another program within it: `lsgd.api` trains and evaluates so. The settings
    are the number of threads, the cores, the kernels of the GPU, torch's default dtype, the filters
    of warnings, the start method of multiprocessing and environment variables; in the main thread
    also random states. Signal handlers are restored where they are set.
    """
    return _guests


@contextmanager
def use_torch_defaults() -> Iterator[None]:
    """Compute in this context with torch's defaults, whatever the program around it has set.

    These are gradients, no autocast, float32 and tensors on the CPU. The end of the context
    restores what the program has set, and all of `restore_process_settings`.
    """
    accelerator = torch.accelerator.current_accelerator()
    with restore_process_settings(), torch.inference_mode(False), ExitStack() as stack:
        torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ["cpu", *([accelerator.type] if accelerator else [])]:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        # torch keeps autocast's copies of weights until the outermost autocast ends: at depth 0 the
        # autocast of each forward pass is that one.
        depth = torch.autocast_increment_nesting()
        for _ in range(depth):
            torch.autocast_decrement_nesting()
        try:
            yield
        finally:
            for _ in range(depth - 1):
                torch.autocast_increment_nesting()


def run_compiled_modules_eagerly() -> AbstractContextManager[None]:
    """Run modules without the graphs that torch.compile has made of them, in this context.

    torch has one such stance for the whole process.
    """
    return _eager_contexts


@contextmanager
def _restored_settings() -> Iterator[None]:
    """Restore the process-wide settings at the end of this context to what they are now."""
    calls: list[Callable[[], object]] = [
        partial(torch.set_num_threads, torch.get_num_threads()),
        partial(torch.set_default_dtype, torch.get_default_dtype()),
        *(partial(setattr, module, name, getattr(module, name)) for module, name in KERNEL_FLAGS),
        partial(bind_to, usable_cores()),
        partial(_restore_warnings, list(warnings.filters), warnings.showwarning),
        partial(_restore_environment, _environment()),
        # None means that no method was chosen yet: a lock or a queue chooses the default one.
        partial(set_start_method, get_start_method(allow_none=True), force=True),
    ]
    if torch.cuda.is_initialized():
        calls.append(partial(torch.cuda.set_device, torch.cuda.current_device()))
    # Beside a training in a thread the program may draw, and would draw the same numbers again.
    if current_thread() is main_thread():
        calls += [
            partial(torch.set_rng_state, torch.get_rng_state()),
            partial(random.setstate, random.getstate()),
            partial(np.random.set_state, np.random.get_state()),
        ]
        if torch.cuda.is_initialized():
            calls.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    yield
    for restore in calls:
        restore()


_guests = _SharedContext(_restored_settings)
_eager_contexts = _SharedContext(lambda: torch.compiler.set_stance("force_eager"))


def _restore_warnings(filters: list[Any], showwarning: Callable[..., None]) -> None:
    """Restore the filters of warnings, which libraries add to when they are imported."""
    if list(warnings.filters) != filters:
        with warnings.catch_warnings():
            pass  # forgets which warnings were shown under the other filters
        warnings.filters[:] = filters  # type: ignore[index]
    warnings.showwarning = showwarning


def _environment() -> dict[str, str]:
    """Return the environment variables that a training may set."""
    return {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)}


def _restore_environment(before: dict[str, str]) -> None:
    """Restore the environment variables that a training may set."""
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def device_name(device: torch.device) -> str:
    """Return the name of this process's accelerator, or of the CPU with its cores and threads.

    The cores are the job's on this machine, and the threads those of this process.
    """
    if device.type != "cpu":
        named = getattr(_module(device.type), "get_device_name", None)
        return str(named(device)) if named else f"{device.type} of {cpu()}"
    launch = detect_launch()
    # The cores of the job on this machine, which its processes share.
    shared = cores(launch) * launch.local_size
    return f"{cpu()}, {shared} cores, threads per process: {get_num_threads()}"


def cpu() -> str:
    """Return the model name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
