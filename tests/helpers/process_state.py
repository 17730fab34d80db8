"""The state that a whole process shares, by name, so that a host can compare it before and after.

It imports nothing of lsgd, as it stands in for a program that lsgd is a guest of.
"""

import ctypes
import faulthandler
import gc
import hashlib
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from decimal import getcontext
from typing import Any

import numpy as np
import torch
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.version import getbase
from omegaconf.basecontainer import BaseContainer


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def store(node: Any) -> Any:
    return {key: store(each) if isinstance(each, dict) else id(each) for key, each in node.items()}


class MallocCounts(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    NAMES = ("arena", "ordblks", "smblks", "hblks", *"abcdef")
    _fields_ = tuple((name, ctypes.c_size_t) for name in NAMES)


def large_blocks_mapped() -> int:
    """1 if glibc maps a block of 48 MiB by itself, as it does unless its limit was raised."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = MallocCounts
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    before = library.mallinfo2().hblks
    block = library.malloc(48 * 2**20)
    mapped = library.mallinfo2().hblks - before
    library.free(block)
    return mapped


GLOBALS: dict[str, Callable[[], Any]] = {
    "hydra: running app": lambda: id(GlobalHydra.instance().hydra),
    "hydra: its config": lambda: id(HydraConfig.instance().cfg),
    "hydra: its job": lambda: dict(JobRuntime.instance().conf),
    "hydra: store": lambda: store(ConfigStore.instance().repo),
    "hydra: plugins": lambda: sorted(Plugins.instance().class_name_to_class),
    "hydra: sources": lambda: sorted(SourcesRegistry.instance().types),
    "hydra: version base": lambda: str(getbase()),
    "hydra: singletons": lambda: sorted(each.__name__ for each in Singleton._instances),
    "omegaconf: resolvers": lambda: {k: id(v) for k, v in BaseContainer._resolvers.items()},
    "torch: threads": torch.get_num_threads,
    "torch: threads between operators": torch.get_num_interop_threads,
    "torch: dtype": torch.get_default_dtype,
    "torch: device": torch.get_default_device,
    "torch: precision of products": torch.get_float32_matmul_precision,
    "torch: TF32 of products": lambda: torch.backends.cuda.matmul.allow_tf32,
    "torch: TF32 of cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "torch: cuDNN benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch: cuDNN deterministic": lambda: torch.backends.cudnn.deterministic,
    "torch: deterministic": torch.are_deterministic_algorithms_enabled,
    "torch: grad": torch.is_grad_enabled,
    "torch: anomalies": torch.is_anomaly_enabled,
    "torch: autocast": lambda: torch.is_autocast_enabled("cpu"),
    "torch: generator": lambda: digest(torch.get_rng_state().tolist()),
    "torch: distributed": torch.distributed.is_initialized,
    "torch: sharing": torch.multiprocessing.get_sharing_strategy,
    "numpy: generator": lambda: digest([str(each) for each in np.random.get_state()]),
    "numpy: errors": np.geterr,
    "numpy: printing": lambda: str(np.get_printoptions()),
    "python: generator": lambda: digest(random.getstate()),
    "python: decimals": lambda: repr(getcontext()),
    "gc: enabled": gc.isenabled,
    "gc: thresholds": gc.get_threshold,
    "gc: frozen": gc.get_freeze_count,
    "gc: callbacks": lambda: len(gc.callbacks),
    "signals: handlers": lambda: {
        str(number): repr(signal.getsignal(number)) for number in signal.valid_signals()
    },
    "signals: blocked": lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "signals: timer": lambda: signal.getitimer(signal.ITIMER_REAL),
    "environment": lambda: dict(os.environ),
    "cwd": os.getcwd,
    "umask": umask,
    "cores": lambda: sorted(os.sched_getaffinity(0)),
    "niceness": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "limits": lambda: [
        resource.getrlimit(getattr(resource, name))
        for name in sorted(dir(resource))
        if name.startswith("RLIMIT")
    ],
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "sys: path": lambda: list(sys.path),
    "sys: argv": lambda: list(sys.argv),
    "sys: streams": lambda: [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
    "sys: hooks": lambda: [repr(sys.excepthook), repr(sys.unraisablehook), repr(sys.displayhook)],
    "sys: finders": lambda: [repr(each) for each in [*sys.meta_path, *sys.path_hooks]],
    "sys: recursion": sys.getrecursionlimit,
    "sys: switches": sys.getswitchinterval,
    "sys: tracing": lambda: [sys.gettrace(), sys.getprofile()],
    "threads: hook": lambda: repr(threading.excepthook),
    "threads: alive": lambda: sorted(each.name for each in threading.enumerate()),
    "logging: root": lambda: [logging.root.level, [repr(each) for each in logging.root.handlers]],
    "logging: disabled": lambda: logging.root.manager.disable,
    "logging: warnings": lambda: repr(warnings.showwarning),
    "warnings": lambda: [repr(each) for each in warnings.filters],
    "processes: start": lambda: multiprocessing.get_start_method(allow_none=True),
    "processes: children": lambda: len(multiprocessing.active_children()),
    "malloc": large_blocks_mapped,
    "faults": faulthandler.is_enabled,
}


def snapshot() -> dict[str, Any]:
    """The value of each of these globals now, by its name."""
    return {name: read() for name, read in GLOBALS.items()}


def changes(before: dict[str, Any]) -> dict[str, Any]:
    """What differs now, by name: the values then and now."""
    now = snapshot()
    return {name: [before[name], now[name]] for name in GLOBALS if before[name] != now[name]}
