"""The rank and world size of this process and its rendezvous, from its launcher's environment.

`_DIALECTS` is the table of all launchers. The environment variables MASTER_ADDR and MASTER_PORT
take precedence over the rendezvous that the table gives.
"""

import os
import platform
import re
import signal
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lsgd.errors import UsageError
from lsgd.job.system import cpu_quota, usable_cores

DEFAULT_PORT = 29500
"""The rendezvous port, if the launcher does not number its jobs."""
LIFE = "LSGD_LIFE"
"""The variable in which a launcher that restarts single processes counts the earlier starts."""
FIRST_GPU = "LSGD_FIRST_GPU"
"""The variable with the GPU of local rank 0, if several jobs share the GPUs of a machine.

The GPUs are counted around: of 4, a first one of 6 means number 2.
"""


@dataclass(frozen=True)
class Launch:
    """The position of a process in its job: launcher, rank, world size, local rank, rendezvous."""

    launcher: str
    """`none` if there was no launcher, else torchrun, horovodrun, mpirun, mpiexec or srun."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    """The number of the job's processes on this machine."""
    master_addr: str | None = None
    """The name or address of the machine of rank 0; None if the launcher does not give it."""
    master_port: int = DEFAULT_PORT
    restart_count: int | None = None
    """The number of earlier starts of this rank; None under launchers that restart none."""

    @property
    def on_host(self) -> str:
        """The words " on HOST" for messages of a job over several machines, else empty."""
        return f" on {platform.node()}" if self.local_size < self.world_size else ""


@dataclass(frozen=True)
class _Dialect:
    """The environment variables by which a launcher numbers its processes."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...]
    """The variables that differ between two jobs on a machine; the port is derived from them."""
    nodes: str = "SLURM_JOB_NODELIST"
    """The variable with Slurm's list of the job's machines, the first of which has rank 0."""
    needs_local_rank: bool = False


_DIALECTS = {
    # The innermost launcher comes first: torchrun or mpirun may run inside a Slurm job.
    "torchrun": _Dialect(
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)
    ),
    "horovodrun": _Dialect(
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        ("HOROVOD_GLOO_RENDEZVOUS_PORT",),
    ),
    "mpirun": _Dialect(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
    ),
    # srun's PMI plugin sets the first two of mpiexec's as well, and only these.
    "mpiexec": _Dialect(
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        ("PMI_PORT",),
        needs_local_rank=True,
    ),
    # Set by srun for its tasks, not by sbatch for the batch script.
    "srun": _Dialect(
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        nodes="SLURM_STEP_NODELIST",
    ),
}

_OTHER_SIZES = (
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "HOROVOD_SIZE",
)
"""The world-size variables of launchers that the table lacks or that say too little."""
_FAMILIES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "TORCHELASTIC_",
    "MASTER_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "MV2_", "SLURM_",
    "FLUX_", "JSM_", LIFE,
)  # fmt: skip
"""The prefixes of the variables by which launchers number their processes."""
_FORWARDED = {"mpirun": signal.SIGUSR1, "horovodrun": signal.SIGTERM, "torchrun": None}
"""The signal that a launcher forwards to processes on other machines, which save and exit.

At SIGTERM mpirun would kill them a second later. A torchrun has processes on its own machine alone.
"""


def detect_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Detect the launcher, rank and sizes of this process from its environment variables.

    Without variables about the machine, this is its only process, as in a PyTorchJob's pods. Raises
    UsageError if a launcher started several processes but does not give this one's rank: each would
    train alone.
    """
    for launcher, says in _DIALECTS.items():
        if launcher == "torchrun" and _repeats_srun(environment):
            continue
        required = [says.rank, says.world_size, *[says.local_rank][: says.needs_local_rank]]
        if all(name in environment for name in required):
            world_size = _number(environment, says.world_size)
            local_size = _local_size(environment, says)
            if not 0 <= (rank := _number(environment, says.rank)) < world_size:
                raise UsageError(
                    f"{says.rank}={rank} is not below {says.world_size}={world_size}, as the "
                    "number of a process is, which begins at 0; unset both, or correct them"
                )
            return Launch(
                launcher,
                rank=rank,
                world_size=world_size,
                local_rank=_number(environment, says.local_rank, 0),
                local_size=local_size,
                master_addr=_master_addr(environment, says, one_machine=local_size == world_size),
                master_port=_master_port(environment, says),
                restart_count=_number(environment, LIFE) if LIFE in environment else None,
            )
    for name in _OTHER_SIZES:
        if _number(environment, name, 1) > 1:
            _refuse_unknown(f"{name}={environment[name]}")
    if "PMIX_RANK" in environment:
        _refuse_unknown(f"PMIX_RANK={environment['PMIX_RANK']}")
    return Launch("none")


def environment_of(launch: Launch) -> dict[str, str]:
    """Return torchrun's environment variables, as they give a process this rank and these sizes.

    They are for lsgd's own launchers: `detect_launch` reads the same `launch` from them.
    `master_addr` and `master_port` have to be known.
    """
    says = _DIALECTS["torchrun"]
    numbers = {
        says.rank: launch.rank,
        says.world_size: launch.world_size,
        says.local_rank: launch.local_rank,
        says.local_size: launch.local_size,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": launch.master_port,
    }
    if launch.restart_count is not None:
        numbers[LIFE] = launch.restart_count
    return {name: str(number) for name, number in numbers.items()}


def without_launcher(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment without launcher variables, for a child outside the job."""
    return {key: value for key, value in environment.items() if not key.startswith(_FAMILIES)}


def forwarded_signal(command: Sequence[str]) -> signal.Signals | None:
    """Return the signal that a launch command forwards to the processes on other machines.

    They save at this signal and exit. It is None if the launcher starts none there.

    >>> forwarded_signal(["env", "A=1", "/opt/bin/mpirun", "-np", "8"]).name
    'SIGUSR1'
    >>> forwarded_signal(["launch/torchrun.sh", "digits", "--out", "runs/mpirun"])
    """
    # The first word may be env, sh or python; a word with = is a variable or an override.
    names = [word.rpartition("/")[2].removesuffix(".sh") for word in command if "=" not in word]
    return next((_FORWARDED[name] for name in names if name in _FORWARDED), None)


def omp_num_threads(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of threads in OMP_NUM_THREADS; None where OpenMP would ignore it.

    >>> omp_num_threads({"OMP_NUM_THREADS": "4,2"}), omp_num_threads({"OMP_NUM_THREADS": "all"})
    (4, None)
    """
    # A list gives the number for each level of nested threads; torch uses one level.
    levels = environment.get("OMP_NUM_THREADS", "").split(",")
    valid = all(re.fullmatch(r"\s*\+?[0-9]+\s*", level) and int(level) for level in levels)
    return int(levels[0]) if valid else None


def cores(launch: Launch, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of CPU cores for this process: an equal share, at most its CPU affinity.

    On a machine that Slurm shares among jobs only this job's cores count, and of a container those
    of its CPU quota. Raises UsageError if Slurm's variable is not a number.
    """
    machine = _number(environment, "SLURM_CPUS_ON_NODE", os.cpu_count() or 1)
    if (quota := cpu_quota()) is not None:
        machine = min(machine, int(quota))
    # mpirun or srun may have bound each process to cores of its own, which are no more divided.
    bound = len(usable_cores())
    return max(1, min(bound, machine // launch.local_size))


def hostnames(nodes: str) -> list[str]:
    """Expand a compact node list of Slurm, such as n[08-10], into hostnames, in its order.

    >>> hostnames("login,n[08-10,12]")
    ['login', 'n08', 'n09', 'n10', 'n12']
    >>> hostnames("rack[1-2]n[3-4]")
    ['rack1n3', 'rack1n4', 'rack2n3', 'rack2n4']
    """
    # Commas also stand inside brackets.
    groups = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return [name for group in groups for name in _expand(group)]


def tasks_per_node(counts: str) -> list[int]:
    """Expand Slurm's compact task counts into the number of processes of each node.

    >>> tasks_per_node("4(x2),1")
    [4, 4, 1]
    """
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(tasks) for tasks, nodes in groups for _ in range(int(nodes or 1))]


def _expand(group: str) -> list[str]:
    prefix, bracket, rest = group.partition("[")
    if not bracket:
        return [prefix]
    ranges, _, rest = rest.partition("]")
    numbers: list[str] = []
    for span in ranges.split(","):
        first, _, last = span.partition("-")
        count = int(last or first) - int(first) + 1
        # 08-10 keeps its zeros.
        numbers += [str(int(first) + i).zfill(len(first)) for i in range(count)]
    return [prefix + number + tail for number in numbers for tail in _expand(rest)]


def _repeats_srun(environment: Mapping[str, str]) -> bool:
    """Return whether RANK and WORLD_SIZE are those of srun's task, under no torchrun.

    Scripts for PyTorch set them, and so do pyxis and Enroot's hook for an image with
    PYTORCH_VERSION, without the number of processes on the machine.
    """
    ours, srun = _DIALECTS["torchrun"], _DIALECTS["srun"]
    if ours.local_size in environment:
        return False
    pairs = [(ours.rank, srun.rank), (ours.world_size, srun.world_size)]
    return all(
        slurm in environment and environment.get(own) == environment[slurm] for own, slurm in pairs
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return an environment variable as a number, or the default if it is unset or empty.

    Raises UsageError for other text, such as the address that Kubernetes has in MASTER_PORT for a
    Service called master.
    """
    value = environment.get(name) or ("" if default is None else str(default))
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name}={value} is not a number; unset it, or write one") from None


def _local_size(environment: Mapping[str, str], says: _Dialect) -> int:
    counts = tasks_per_node(environment.get(says.local_size) or "1")
    if not counts:
        return _number(environment, says.local_size)
    # Only Slurm gives the counts of all nodes; pick that of this node.
    node = _number(environment, "SLURM_NODEID") if len(counts) > 1 else 0
    if not 0 <= node < len(counts):
        raise UsageError(
            f"SLURM_NODEID={node}, and {says.local_size}={environment[says.local_size]} is of "
            f"{len(counts)} nodes, so they are of different steps; start the process by srun"
        )
    return counts[node]


def _master_addr(
    environment: Mapping[str, str], says: _Dialect, *, one_machine: bool
) -> str | None:
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    if one_machine:
        return "127.0.0.1"
    if says.nodes in environment:
        return hostnames(environment[says.nodes])[0]
    # Open MPI 4: `JOB;tcp://ADDRESS,…:PORT;…`, of the machine where mpirun was started.
    mpirun = re.search(r"tcp://([\d.]+)", environment.get("OMPI_MCA_orte_hnp_uri", ""))
    return mpirun[1] if mpirun else None


def given_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the rendezvous port in MASTER_PORT; None if it is unset or empty.

    Raises UsageError for what is no port.
    """
    if not environment.get("MASTER_PORT"):
        return None
    port = _number(environment, "MASTER_PORT")
    if not 0 <= port < 2**16:
        raise UsageError(f"MASTER_PORT={port} must be from 0 to 65535; unset it, or write one")
    return port


def _master_port(environment: Mapping[str, str], says: _Dialect) -> int:
    """Return the rendezvous port: MASTER_PORT, or one derived from the job, against clashes."""
    if (port := given_port(environment)) is not None:
        return port
    job = ".".join(environment.get(name, "") for name in says.job).strip(".")
    # Below 32768, where the systems' ephemeral ports begin.
    return 20000 + zlib.crc32(job.encode()) % 9000 if job else DEFAULT_PORT


def _refuse_unknown(setting: str) -> None:
    raise UsageError(
        f"{setting} means one of several processes, but no rank is set as by torchrun, "
        "horovodrun, mpirun, Intel's mpiexec or srun, so every process would train alone; "
        "launch with one of these (lsgd launch has all of them)"
    )
