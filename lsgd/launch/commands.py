"""The launchers that run a job at once: torchrun, horovodrun, mpirun, singly, ray and local."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from lsgd.errors import UsageError
from lsgd.installation import install_command, script_command
from lsgd.job.launcher import DEFAULT_PORT, given_port
from lsgd.job.network import (
    TORCHRUN_HERE,
    hostname,
    hostname_problem,
    list_interfaces,
    loopback_problem,
)
from lsgd.launch.launch_command import LaunchCommand
from lsgd.launch.options import Request
from lsgd.launch.processes import count_processes, find_python, usable_cores_here, with_threads

CARRIED = ("GLOO_", "HOROVOD_", "LSGD_", "MASTER_", "NCCL_", "UCX_")
"""The prefixes of the variables that mpirun exports to other hosts.

MASTER_ADDR and MASTER_PORT are the rendezvous, at which all processes have to connect.
"""

WITHOUT_HOROVOD = """
import horovod.torch as hvd
import torch

if torch.cuda.is_available() and not hvd.nccl_built():
    print("Horovod is built without NCCL, so not for these GPUs")
"""
"""A script that fails without Horovod, and prints why an installed one is unusable here."""

SET_PYTHON = "set PYTHON to an existing one"


def local(request: Request) -> LaunchCommand:
    """Return the command of a job on this machine: one plain process, or several over Horovod.

    Without Horovod, torchrun starts several. A single process has no launcher, since that would
    take as long to start as the process itself.
    """
    processes = count_processes("local", request.options)
    if processes == 1:
        print("lsgd: 1 process, without a launcher", file=sys.stderr)
        python = find_python()
        command = with_threads(request, 1, [python, *request.train_arguments])
        return LaunchCommand(request, 1, command, python, SET_PYTHON)
    request = replace(request, options={**request.options, "--np": str(processes)})
    horovod = subprocess.run([find_python(), "-c", WITHOUT_HOROVOD], capture_output=True, text=True)
    lacks = horovod.stdout.strip()
    if horovod.returncode:
        lacks = f"Horovod is not installed; {script_command('setup/horovod.sh')} builds it"
    elif problem := hostname_problem(hostname(), list_interfaces()):
        lacks = f"{problem.finding}, which would crash Horovod; {problem.fix}"
    if lacks:
        print(f"lsgd: {processes} processes under torchrun ({lacks})", file=sys.stderr)
        return torchrun(request)
    print(f"lsgd: {processes} processes under horovodrun", file=sys.stderr)
    return horovodrun(request)


def torchrun(request: Request) -> LaunchCommand:
    """Return the command of a job under torchrun: on this machine, or with --nodes on several.

    With --nodes it is started on each machine, with MASTER_ADDR naming the first.
    """
    options = request.options
    meeting = list(TORCHRUN_HERE)
    if int(options.get("--nodes", 1)) == 1:
        _check_loopback(request)
    else:
        if "--gpus" not in options:
            raise UsageError("--nodes needs --gpus, the processes on each")
        master = os.environ.get("MASTER_ADDR")
        if not master:
            raise UsageError(
                "on several machines, set MASTER_ADDR to the first one's name, and run this "
                "command on each"
            )
        port = DEFAULT_PORT if (given := given_port()) is None else given
        meeting = ["--nnodes", options["--nodes"], "--rdzv-backend", "c10d"]
        meeting += ["--rdzv-endpoint", f"{master}:{port}"]
        if not request.print_only:  # torchrun itself prints nothing while it waits
            print(
                f"lsgd: waiting at {master}:{port} for this command on {options['--nodes']} "
                "machines; torchrun fails after ten minutes, or after one if it cannot connect",
                file=sys.stderr,
            )
    processes = count_processes("torchrun", options)
    program = _beside_python("torchrun")
    logs = _log_folder(request)
    command = [
        *[program, *meeting, "--nproc-per-node", options.get("--gpus", str(processes))],
        *(["--log-dir", logs, "--tee", "3"] if logs else []),
        *request.train_arguments,
    ]
    command = with_threads(request, processes, command)
    remedy = f"it comes with torch: {install_command()}"
    return LaunchCommand(request, processes, command, program, remedy, log_folder=logs)


def horovodrun(request: Request) -> LaunchCommand:
    """Return the command of a job under horovodrun, here or on --hosts, reached over ssh."""
    python = find_python()
    processes = count_processes("horovodrun", request.options)
    program = _beside_python("horovodrun")
    hosts = request.options.get("--hosts")
    if not hosts:
        _check_loopback(request)
        _check_hostname(request)
    # Horovod 0.28.1 cannot name the files of a single process, whose output is visible anyway.
    logs = _log_folder(request) if processes > 1 else ""
    # It caches checks of other hosts, for which the home folder has to be writable.
    can_cache = bool(hosts) and os.access(os.path.expanduser("~"), os.W_OK)
    command = [
        # Without --gloo it would call mpirun where it can, which is a launcher of its own here.
        *[program, "--gloo", "-np", str(processes)],
        *(["-H", hosts] if hosts else []),
        *([] if can_cache else ["--disable-cache"]),
        *(["--output-filename", logs] if logs else []),
        *[python, *request.train_arguments],
    ]
    command = with_threads(request, processes, command)
    remedy = f"{script_command('setup/horovod.sh')} builds it"
    return LaunchCommand(request, processes, command, program, remedy, log_folder=logs)


def mpirun(request: Request) -> LaunchCommand:
    """Return the command of a job under Open MPI's mpirun, on --hosts or on the known machines.

    Those are the machines of its hostfile or of the Slurm job it runs in, else this one.
    """
    options = request.options
    if "--nodes" in options and "--gpus" not in options:
        raise UsageError("--nodes needs --gpus, the processes on each")
    python = find_python()
    processes = count_processes("mpirun", options)
    if os.geteuid() == 0 and not os.environ.get("OMPI_ALLOW_RUN_AS_ROOT"):
        print(
            "lsgd: you are root, which Open MPI refuses; if root is intended, as in a container, "
            "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.",
            file=sys.stderr,
        )
    gpus, hosts, logs = options.get("--gpus"), options.get("--hosts"), _log_folder(request)
    if ":" in logs:  # Open MPI 4 reads options after a colon, and would use another folder
        print(
            f"lsgd: the output of each process is not kept in a file, since mpirun cuts {logs} "
            "at its colon",
            file=sys.stderr,
        )
        logs = ""
    # On this machine Open MPI has a slot for each core, which the system may count twice.
    alone = not (hosts or gpus or "SLURM_JOB_ID" in os.environ)
    crowded = alone and processes > usable_cores_here() // 2
    command = [
        # Open MPI binds each of two processes to one core, and all its threads with it.
        *["mpirun", "--bind-to", "none", "-np", str(processes)],
        *(["--oversubscribe"] if crowded else []),
        *(["--map-by", f"ppr:{gpus}:node"] if gpus else []),
        *(["-H", hosts] if hosts else []),
        *(["--output-filename", logs] if logs else []),
        # mpirun does not export the environment to other hosts, so `env` is part of the command.
        *(word for name in exported_variables(os.environ) for word in ("-x", name)),
        *with_threads(request, processes, [python, *request.train_arguments]),
    ]
    remedy = (
        "Debian has it: 'sudo apt install openmpi-bin libopenmpi-dev', then "
        f"{script_command('setup/horovod.sh')}"
    )
    # Each of --hosts makes its own folder, which may be on a disk that this machine does not have.
    made_here = "" if hosts else logs
    return LaunchCommand(request, processes, command, "mpirun", remedy, log_folder=made_here)


def singly(request: Request) -> LaunchCommand:
    """Return the command of a job under lsgd's one-machine launcher, which restarts processes."""
    _check_loopback(request)
    return _own(request, "singly")


def ray(request: Request) -> LaunchCommand:
    """Return the command of a job under lsgd's launcher over a Ray cluster, joined or started."""
    return _own(request, "ray")


def exported_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the sorted names of the set variables that mpirun exports to other hosts.

    They are the settings of the communication libraries, of the dynamic loader, and of lsgd;
    horovodrun and srun export every variable.
    """
    return sorted(
        name
        for name, value in environment.items()
        if value and (name.startswith(CARRIED) or name == "LD_LIBRARY_PATH")
    )


def _own(request: Request, launcher: str) -> LaunchCommand:
    """Return the command of a job under the launcher of lsgd with this name: singly or ray."""
    python = find_python()
    processes = count_processes(launcher, request.options)
    command = [
        *[python, "-m", f"lsgd.supervise.{launcher}", str(processes), "--"],
        *with_threads(request, processes, [python, *request.train_arguments]),
    ]
    return LaunchCommand(request, processes, command, python, SET_PYTHON, saves_at_interrupt=True)


def _check_loopback(request: Request) -> None:
    """Raise UsageError if processes on this machine could not connect at 127.0.0.1."""
    if not request.print_only and (problem := loopback_problem(list_interfaces())):
        raise UsageError(f"{problem.finding}, which the processes need to connect; {problem.fix}")


def _check_hostname(request: Request) -> None:
    """Raise UsageError if Horovod would crash because of this machine's hostname."""
    if not request.print_only and (problem := hostname_problem(hostname(), list_interfaces())):
        raise UsageError(
            f"{problem.finding}, which would crash Horovod; {problem.fix}, or start the run "
            "with `python -m lsgd.launch torchrun`"
        )


def _beside_python(program: str) -> str:
    """Return the path of a program installed beside Python, even if its folder is not in PATH."""
    path = os.path.join(os.path.dirname(shutil.which(find_python()) or ""), program)
    return path if os.access(path, os.X_OK) else program


def _log_folder(request: Request) -> str:
    """Return a new folder for the processes' output; '' without a run_dir and for a check."""
    if not request.run_dir or request.is_check:
        return ""
    start = 1
    while os.path.exists(f"{request.run_dir}/logs/start{start}"):
        start += 1
    return f"{request.run_dir}/logs/start{start}"
