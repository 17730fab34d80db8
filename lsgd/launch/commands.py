"""The launchers that become the job: torchrun, horovodrun, mpirun, lsgd's own two, and `local`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from lsgd.errors import Refused
from lsgd.installation import install, script
from lsgd.job.launcher import DEFAULT_PORT
from lsgd.launch.options import Request
from lsgd.launch.processes import count_processes, find_python, threads
from lsgd.launch.start import Start

CARRIED = ("GLOO_", "HOROVOD_", "LSGD_", "NCCL_", "UCX_")
"""How the variables begin that mpirun is told to carry to other hosts."""

WITHOUT_HOROVOD = """
import horovod.torch as hvd
import torch

if torch.cuda.is_available() and not hvd.nccl_built():
    print("Horovod is built without NCCL, so not for these GPUs")
"""
"""Fails without Horovod, and prints why one that is there is of no use on this machine."""

SET_PYTHON = "set PYTHON to one that is there"


def local(request: Request) -> Start:
    """One job on this machine: a single process by itself, more over Horovod if it is there.

    A launcher around a single process would take as long to start as all that it starts.
    """
    processes = count_processes("local", request.options)
    if processes == 1:
        print("lsgd: 1 process, without a launcher", file=sys.stderr)
        python = find_python()
        command = ["env", threads(request, 1), python, *request.train]
        return Start(request, 1, command, python, SET_PYTHON)
    request = replace(request, options={"--np": str(processes)})
    horovod = subprocess.run([find_python(), "-c", WITHOUT_HOROVOD], capture_output=True, text=True)
    lacks = horovod.stdout.strip()
    if horovod.returncode:
        lacks = f"Horovod is not installed; {script('setup/horovod.sh')} builds it"
    if lacks:
        print(f"lsgd: {processes} processes under torchrun ({lacks})", file=sys.stderr)
        return torchrun(request)
    print(f"lsgd: {processes} processes under horovodrun", file=sys.stderr)
    return horovodrun(request)


def torchrun(request: Request) -> Start:
    """One job under torchrun: on this machine, or with --nodes on several.

    It is started on each of them, with MASTER_ADDR naming the first.
    """
    options = request.options
    meeting = ["--standalone"]
    if int(options.get("--nodes", 1)) > 1:
        if "--gpus" not in options:
            raise Refused("--nodes needs --gpus, the processes on each")
        master = os.environ.get("MASTER_ADDR")
        if not master:
            raise Refused(
                "on several machines, set MASTER_ADDR to the first one's name, and give this "
                "command on each"
            )
        port = os.environ.get("MASTER_PORT") or DEFAULT_PORT
        meeting = ["--nnodes", options["--nodes"], "--rdzv-backend", "c10d"]
        meeting += ["--rdzv-endpoint", f"{master}:{port}"]
    processes = count_processes("torchrun", options)
    program = _beside_python("torchrun")
    logs = _log_folder(request)
    command = [
        *["env", threads(request, processes), program, *meeting],
        *["--nproc-per-node", options.get("--gpus", str(processes))],
        *(["--log-dir", logs, "--tee", "3"] if logs else []),
        *request.train,
    ]
    return Start(request, processes, command, program, f"it comes with torch: {install()}")


def horovodrun(request: Request) -> Start:
    """One job under horovodrun, on this machine or on --hosts, which it reaches over ssh."""
    python = find_python()
    processes = count_processes("horovodrun", request.options)
    program = _beside_python("horovodrun")
    hosts = request.options.get("--hosts")
    # Horovod 0.28.1 cannot name the files of a single process; what that prints is seen anyway.
    logs = _log_folder(request) if processes > 1 else ""
    command = [
        # Without --gloo it hands over to mpirun where it can, which is a launcher of its own here.
        *["env", threads(request, processes), program, "--gloo", "-np", str(processes)],
        *(["-H", hosts] if hosts else []),
        *(["--output-filename", logs] if logs else []),
        *[python, *request.train],
    ]
    remedy = f"{script('setup/horovod.sh')} builds it"
    return Start(request, processes, command, program, remedy)


def mpirun(request: Request) -> Start:
    """One job under Open MPI's mpirun, on --hosts or on the machines that it knows of.

    Those are the machines of its hostfile or of the Slurm job it runs in, else this one.
    """
    options = request.options
    if "--nodes" in options and "--gpus" not in options:
        raise Refused("--nodes needs --gpus, the processes on each")
    python = find_python()
    processes = count_processes("mpirun", options)
    if os.geteuid() == 0 and not os.environ.get("OMPI_ALLOW_RUN_AS_ROOT"):
        print(
            "lsgd: you are root, which Open MPI refuses; where that is meant, as in a container, "
            "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.",
            file=sys.stderr,
        )
    gpus, hosts, logs = options.get("--gpus"), options.get("--hosts"), _log_folder(request)
    command = [
        # Open MPI binds each of two processes to one core, and all its threads with it.
        *["mpirun", "--bind-to", "none", "-np", str(processes)],
        *(["--map-by", f"ppr:{gpus}:node"] if gpus else []),
        *(["-H", hosts] if hosts else []),
        *(["--output-filename", logs] if logs else []),
        # It does not carry the environment to other hosts; so `env` stands inside.
        *(word for name in carried(os.environ) for word in ("-x", name)),
        *["env", threads(request, processes), python, *request.train],
    ]
    remedy = (
        "Debian has it: 'sudo apt install openmpi-bin libopenmpi-dev', then "
        f"{script('setup/horovod.sh')}"
    )
    return Start(request, processes, command, "mpirun", remedy)


def singly(request: Request) -> Start:
    """One job on this machine whose processes are started one by one, and again if they die."""
    return _own(request, "singly")


def ray(request: Request) -> Start:
    """One job over Ray: that of RAY_ADDRESS, or one of its own on this machine."""
    return _own(request, "ray")


def carried(environment: Mapping[str, str]) -> list[str]:
    """The variables that are set and that mpirun carries to other hosts, in order.

    These are the settings of the libraries that communicate, of the loader of all of them, and of
    lsgd; horovodrun carries every variable, and so does srun.
    """
    return sorted(
        name
        for name, value in environment.items()
        if value and (name.startswith(CARRIED) or name == "LD_LIBRARY_PATH")
    )


def _own(request: Request, launcher: str) -> Start:
    """A launcher of lsgd's own, which is told the command of each process."""
    python = find_python()
    processes = count_processes(launcher, request.options)
    command = [
        *[python, "-m", f"lsgd.supervise.{launcher}", str(processes), "--"],
        *["env", threads(request, processes), python, *request.train],
    ]
    return Start(request, processes, command, python, SET_PYTHON, saves_at_interrupt=True)


def _beside_python(program: str) -> str:
    """A program that is installed beside the Python, whether or not that folder is in PATH."""
    path = os.path.join(os.path.dirname(shutil.which(find_python()) or ""), program)
    return path if os.access(path, os.X_OK) else program


def _log_folder(request: Request) -> str:
    """Where the output of each process is kept: a new folder for every start.

    It is an empty text if the run names its folder itself.
    """
    if not request.run_dir:
        return ""
    start = 1
    while os.path.exists(f"{request.run_dir}/logs/start{start}"):
        start += 1
    return f"{request.run_dir}/logs/start{start}"
