"""A launcher that forks its processes, so that all launches together import torch once.

    python forked.py N PROGRAM [ARGUMENT …]
    python forked.py N -m MODULE [ARGUMENT …]
    python forked.py --serve SOCKET [MODULE …]

The forks get the ranks that torchrun would give them. A launch by torchrun takes five CPU seconds
for each process and three for itself, mostly for imports. This launcher is for tests of what
processes compute; tests of how processes start or exit use real launchers.

With --serve it is a fork server that launches processes for clients (client.py), each in its own
folder and environment, and also runs other command lines as Python would. It imports the modules at
its start.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import hydra  # noqa: F401
import torch._dynamo  # torch.optim imports it at the first step, which would cost each fork
import torch.distributed
from torch.utils import tensorboard  # noqa: F401

# Most processes import torchvision, by this module. It is run from its file, since a server may run
# programs with another version of lsgd, and kept, since its declarations end with their object.
VISION = runpy.run_path(str(Path(__file__).parents[2] / "lsgd/vision.py"))
PR_SET_PDEATHSIG = 1
"""The option of prctl that sets the signal for a process whose parent exits."""


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent exits, so that no process stays behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_program(words: list[str]) -> None:
    """Run a program in this process as `python WORDS…` would, with sys.argv and sys.path set."""
    end_with_parent()
    sys.orig_argv = [sys.executable, *words]
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == "-u":
        words = words[1:]
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    elif words[:2] == ["-W", "ignore"]:
        words = words[2:]
        warnings.simplefilter("ignore")
    sys.argv = words
    match words:
        case ["-c", program, *arguments]:
            sys.path[0], sys.argv = "", ["-c", *arguments]
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        case ["-m", module, *arguments]:
            sys.path[0], sys.argv = os.getcwd(), ["-m", *arguments]
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]
        case ["-", *_]:
            sys.path[0] = ""
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
        case [program, *_]:
            sys.path[0] = str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")


def wait(ranks: dict[int, int]) -> int:
    """Wait for the processes of a job, `ranks` by process id; return the job's exit code.

    As under torchrun, a failed process makes the others receive SIGTERM, and the code is 1. All
    that fail are named: of two that have ended, the system may give the later one first.
    """
    code = 0
    while ranks:
        process, status = os.wait()
        rank, how = ranks.pop(process), os.waitstatus_to_exitcode(status)
        if how:
            name = signal.Signals(-how).name if how < 0 else f"exit code {how}"
            print(f"process {rank} has ended with {name}", file=sys.stderr)
        if how and not code:
            code = 1
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return code


def main(processes: int, *words: str) -> int:
    """Fork the processes of a job, run a program in each, and return the job's exit code."""
    # Not imported at the top, since a server may run programs with another version of lsgd.
    launcher = importlib.import_module("lsgd.job.launcher")
    # A test file may be the program of the job, and imports `helpers`.
    sys.path.insert(1, str(Path(__file__).parent.parent))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(processes):
        if (process := os.fork()) == 0:
            numbers = rank, processes, rank, processes
            launch = launcher.Launch("torchrun", *numbers, "127.0.0.1", port)
            os.environ.update(launcher.environment_of(launch))
            run_program(list(words))
            return 0
        ranks[process] = rank
    return wait(ranks)


def serve(path: str, *modules: str) -> int:
    """Serve clients at a socket: run each client's command line in a fork, send its exit code.

    In the fork, return the exit code of the command line.
    """
    end_with_parent()
    sys.path[0] = os.getcwd()
    for module in modules:
        importlib.import_module(module)
    # Otherwise garbage collection in each fork would touch and so copy all pages of the parent.
    gc.freeze()
    signal.signal(signal.SIGCHLD, reap)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork():
                connection.close()
                continue
            end_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            message, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
            if process := os.fork():
                code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with suppress(OSError):  # if the client was killed
                    connection.sendall(bytes([code % 256]))
                os._exit(0)
            break
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    asked = json.loads(message)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    end_with_parent()
    first, *words = asked["words"]
    if first.isdecimal():
        return main(int(first), *words)
    run_program([first, *words])
    return 0


def reap(*_: object) -> None:
    """Reap the forks that have exited; the server then counts their CPU time as its children's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def exit_process(code: object) -> NoReturn:
    """End this process with the code of a SystemExit as Python does, but without freeing objects.

    Freeing the modules that it shares with its parent would copy all their pages first, which takes
    0.3 CPU seconds. What the end of the interpreter may break is for tests with real launchers.
    """
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream and not stream.closed:
                stream.flush()
    except OSError:
        code = 120  # Python's own, if the output cannot be written
    os._exit((code or 0) % 256)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        if sys.argv[1] == "--serve":
            ended: object = serve(*sys.argv[2:])
        else:
            ended = main(int(sys.argv[1]), *sys.argv[2:])
    except SystemExit as end:
        ended = end.code
    exit_process(ended)
