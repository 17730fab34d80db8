"""The numbers of this process and the meeting place, from the environment of its launcher.

`_DIALECTS` is the table of all launchers. The environment variables MASTER_ADDR and MASTER_PORT win
over the meeting place that the table gives.
"""

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from lsgd.errors import Refused

DEFAULT_PORT = 29500
"""The port at which the processes meet, if the launcher does not number its jobs."""
LIFE = "LSGD_LIFE"
"""The variable in which a launcher that starts single processes again counts the earlier starts."""


@dataclass(frozen=True)
class Launch:
    """One process of a job, as its launcher numbered it."""

    launcher: str
    """`none` if there was no launcher, else torchrun, horovodrun, mpirun, mpiexec or srun."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    """The number of the job's processes on this machine."""
    master_addr: str | None = None
    """Name or address of the machine of process 0; None if the launcher does not say."""
    master_port: int = DEFAULT_PORT
    life: int | None = None
    """How often this process was started before, while the others went on; None if its launcher
    starts none again."""


@dataclass(frozen=True)
class _Dialect:
    """The environment variables in which a launcher numbers its processes."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...]
    """Variables that differ between two jobs on a machine: the port is made of their values."""
    nodes: str = "SLURM_JOB_NODELIST"
    """Slurm's list of the job's machines, the first of which has process 0."""
    needs_local_rank: bool = False


_DIALECTS = {
    # The innermost launcher is asked first: torchrun or mpirun may run inside a Slurm job.
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
"""Variables in which launchers that are not in the table, or say too little, count processes."""
_FAMILIES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "TORCHELASTIC_",
    "MASTER_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "MV2_", "SLURM_",
    "FLUX_", "JSM_", LIFE,
)  # fmt: skip
"""How the names begin of the variables by which launchers number their processes."""


def detect(environment: Mapping[str, str] = os.environ) -> Launch:
    """The launcher of this process and its numbers, from the environment variables.

    Where nothing is said about the machine, this is its only process, as in a PyTorchJob's pods.
    Raises Refused if a launcher started several processes but does not say which one this is:
    each would train alone.
    """
    for launcher, says in _DIALECTS.items():
        required = [says.rank, says.world_size, *[says.local_rank][: says.needs_local_rank]]
        if all(name in environment for name in required):
            world_size = int(environment[says.world_size])
            local_size = _local_size(environment, says)
            return Launch(
                launcher,
                rank=int(environment[says.rank]),
                world_size=world_size,
                local_rank=int(environment.get(says.local_rank, 0)),
                local_size=local_size,
                master_addr=_master_addr(environment, says, one_machine=local_size == world_size),
                master_port=_master_port(environment, says),
                life=int(environment[LIFE]) if LIFE in environment else None,
            )
    for name in _OTHER_SIZES:
        if int(environment.get(name, 1)) > 1:
            _refuse_unknown(f"{name}={environment[name]}")
    if "PMIX_RANK" in environment:
        _refuse_unknown(f"PMIX_RANK={environment['PMIX_RANK']}")
    return Launch("none")


def environment_of(launch: Launch) -> dict[str, str]:
    """The variables that make a process this one of its job, in torchrun's dialect.

    They are for launchers of lsgd's own: `detect` reads the same `launch` from them. Where the
    processes meet has to be known, as `master_addr` and `master_port`.
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
    if launch.life is not None:
        numbers[LIFE] = launch.life
    return {name: str(number) for name, number in numbers.items()}


def without_launcher(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that is none of the job, which one of the job starts."""
    return {key: value for key, value in environment.items() if not key.startswith(_FAMILIES)}


def cores(launch: Launch, environment: Mapping[str, str] = os.environ) -> int:
    """The cores that fall to this process: its share of the machine's, or what it is bound to.

    Of a machine that Slurm shares among jobs only this job's cores count.
    """
    machine = int(environment.get("SLURM_CPUS_ON_NODE", os.cpu_count() or 1))
    # mpirun may have bound it to some of them.
    bound = len(os.sched_getaffinity(0))
    return max(1, min(bound, machine // launch.local_size))


def hostnames(nodes: str) -> list[str]:
    """The machines in a node list of Slurm's, in its order.

    >>> hostnames("login,n[08-10,12]")
    ['login', 'n08', 'n09', 'n10', 'n12']
    >>> hostnames("rack[1-2]n[3-4]")
    ['rack1n3', 'rack1n4', 'rack2n3', 'rack2n4']
    """
    # Commas also stand inside brackets.
    groups = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return [name for group in groups for name in _expand(group)]


def tasks_per_node(counts: str) -> list[int]:
    """The number of processes of each node, from Slurm's short form.

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


def _local_size(environment: Mapping[str, str], says: _Dialect) -> int:
    counts = tasks_per_node(environment.get(says.local_size, "1"))
    # Only Slurm counts the processes of all nodes, and this is one of them.
    return counts[0] if len(counts) == 1 else counts[int(environment["SLURM_NODEID"])]


def _master_addr(
    environment: Mapping[str, str], says: _Dialect, *, one_machine: bool
) -> str | None:
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    if one_machine:
        return "127.0.0.1"
    if says.nodes in environment:
        return hostnames(environment[says.nodes])[0]
    # Open MPI 4: `JOB;tcp://ADDRESS,…:PORT;…`, of the machine where mpirun was started.
    mpirun = re.search(r"tcp://([\d.]+)", environment.get("OMPI_MCA_orte_hnp_uri", ""))
    return mpirun[1] if mpirun else None


def _master_port(environment: Mapping[str, str], says: _Dialect) -> int:
    """The port of MASTER_PORT, or one made of the job, so that two jobs on a machine differ."""
    if "MASTER_PORT" in environment:
        return int(environment["MASTER_PORT"])
    job = ".".join(environment.get(name, "") for name in says.job).strip(".")
    # Below 32768, where systems begin to hand out ports of their own choice.
    return 20000 + zlib.crc32(job.encode()) % 9000 if job else DEFAULT_PORT


def _refuse_unknown(setting: str) -> None:
    raise Refused(
        f"{setting} says that this is one of several processes, but not which one as torchrun, "
        "horovodrun, mpirun, Intel's mpiexec and srun say it, so every process would train alone; "
        "start with one of these (lsgd launch has all of them)"
    )
