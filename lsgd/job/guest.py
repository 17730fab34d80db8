"""The restoring of process-wide settings where lsgd runs inside another program."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lsgd.job.system import bind_to, usable_cores

FLAGS = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "benchmark"),
)
"""The flags that choose_kernels sets."""


@contextmanager
def restore_process_settings() -> Iterator[None]:
    """Restore at the end of this context the process-wide settings that a training has changed.

    These are the number of threads, the cores, the kernels of the GPU and torch's random state;
    signal handlers are restored where they are set. Environment variables stay, since libraries
    read them once.
    """
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    flags = [getattr(module, name) for module, name in FLAGS]
    cores = usable_cores()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        for (module, name), value in zip(FLAGS, flags, strict=True):
            setattr(module, name, value)
        bind_to(cores)
