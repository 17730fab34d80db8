"""What each launcher's environment says about this process: its rank among how many."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """One process of a job, as its launcher numbered it."""

    launcher: str
    """`none` if there was no launcher, else torchrun, horovodrun, mpirun, mpiexec or srun."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    """Processes on this machine."""


_DIALECTS = {
    # The innermost launcher is asked first: torchrun or mpirun may run inside a Slurm job.
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # Set by srun for its tasks, not by sbatch for the batch script.
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}


def detect(environment: Mapping[str, str] = os.environ) -> Launch:
    """The launcher of this process and its numbers, from the environment variables.

    Where nothing is said about the machine, this is its only process, as in a PyTorchJob's pods.
    """
    for launcher, (rank, world_size, local_rank, local_size) in _DIALECTS.items():
        # srun's PMI plugin sets the first two of mpiexec's, and only these.
        required = (rank, world_size, local_rank) if launcher == "mpiexec" else (rank, world_size)
        if all(name in environment for name in required):
            return Launch(
                launcher,
                rank=int(environment[rank]),
                world_size=int(environment[world_size]),
                local_rank=int(environment.get(local_rank, 0)),
                # Slurm writes 4(x2) for two nodes of four tasks.
                local_size=int(re.match(r"\d+", environment.get(local_size, "1"))[0]),  # type: ignore[index]
            )
    return Launch("none")


def cores(launch: Launch) -> int:
    """The cores that fall to this process: its share of the machine's, or what it is bound to."""
    # mpirun may have bound it to some of them.
    bound, all_ = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    return max(1, min(bound, all_ // launch.local_size))
