"""A launcher whose processes import torch once, between them.

    python forked.py N PROGRAM [ARGUMENT …]
    python forked.py N -m MODULE [ARGUMENT …]

They are forks of this one, numbered as torchrun numbers its own. A start by torchrun takes five CPU
seconds for each process and three for itself, most of them for imports. It is for tests that ask
what processes compute; those that ask how they are launched, or end, start real launchers.
"""

import ctypes
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import torch._dynamo  # which torch.optim imports as well, when it first makes a step
import torch.distributed
from torch.utils import tensorboard  # noqa: F401

import lsgd.config
import lsgd.vision  # noqa: F401
from lsgd.job.launcher import Launch, environment_of

PR_SET_PDEATHSIG = 1
"""The option of prctl that names the signal which a process gets when its parent ends."""


def become(launch: Launch, words: list[str]) -> None:
    """Run a program as this process of the job, as if Python had been given these words."""
    # None is left of a job whose launcher is killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(environment_of(launch))
    sys.argv = words
    if words[0] == "-m":
        del words[0]
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


def wait(ranks: dict[int, int]) -> int:
    """Wait for processes, whose ranks are given by their ids; returns the exit code of the job.

    As under torchrun the others are told to end when one has failed, and the code is 1 then.
    """
    code = 0
    while ranks:
        process, status = os.wait()
        rank, how = ranks.pop(process), os.waitstatus_to_exitcode(status)
        if how and not code:
            code = 1
            name = signal.Signals(-how).name if how < 0 else f"exit code {how}"
            print(f"process {rank} has ended with {name}", file=sys.stderr)
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return code


def main(processes: int, *words: str) -> int:
    """Start the processes and wait for their end; returns the exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(processes):
        if (process := os.fork()) == 0:
            numbers = rank, processes, rank, processes
            become(Launch("torchrun", *numbers, "127.0.0.1", port), list(words))
            return 0
        ranks[process] = rank
    return wait(ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    raise SystemExit(main(int(sys.argv[1]), *sys.argv[2:]))
