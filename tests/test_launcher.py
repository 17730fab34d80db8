import pytest

from lsgd.launcher import Launch, detect

# What srun sets for the fourth task of a step of 8 on 2 nodes, inside an sbatch script.
SBATCH = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "8",
    "SLURM_NPROCS": "8",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
SRUN = SBATCH | {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_RANK": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "4",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "ROLE_RANK": "3",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}
HOROVODRUN = {
    "HOROVOD_RANK": "2",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, Launch("none", 0, 1, 0, 1)),
        ({"PATH": "/bin", "WORLD_SIZE": "4"}, Launch("none", 0, 1, 0, 1)),
        (TORCHRUN, Launch("torchrun", 3, 4, 1, 2)),
        (HOROVODRUN, Launch("horovodrun", 2, 4, 0, 2)),
        (MPIRUN, Launch("mpirun", 4, 6, 1, 3)),
        (MPICH, Launch("mpiexec", 2, 4, 0, 2)),
        (SRUN, Launch("srun", 5, 8, 1, 4)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4,4"}, Launch("srun", 5, 8, 1, 4)),
        # Every process alone in its step, as in an interactive allocation.
        (
            SBATCH | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"},
            Launch("srun", 0, 1, 0, 1),
        ),
    ],
)
def test_dialects(environment: dict[str, str], launch: Launch) -> None:
    assert detect(environment) == launch


def test_a_batch_script_is_no_launcher() -> None:
    """sbatch runs it once, whatever the number of tasks it asked for."""
    assert detect(SBATCH) == Launch("none")


@pytest.mark.parametrize(
    ("inner", "launcher"), [(TORCHRUN, "torchrun"), (MPIRUN, "mpirun"), (HOROVODRUN, "horovodrun")]
)
def test_the_innermost_launcher_counts(inner: dict[str, str], launcher: str) -> None:
    """Inside a Slurm job, also where srun starts one agent per node."""
    assert detect(SBATCH | inner).launcher == launcher
    assert detect(SRUN | inner) == detect(inner)
    assert detect(MPIRUN | TORCHRUN).launcher == "torchrun"


def test_srun_with_pmi2_is_srun() -> None:
    """Its plugin sets PMI_RANK and PMI_SIZE too, but no local rank of that dialect."""
    pmi2 = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "9", "PMI_JOBID": "17.0"}
    assert detect(SRUN | pmi2) == Launch("srun", 5, 8, 1, 4)


def test_a_job_without_local_ranks_is_no_single_process() -> None:
    """As Kubernetes' PyTorchJob starts it, one per pod; each would train alone and say nothing."""
    environment = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    assert detect(environment) == Launch("torchrun", 3, 4, 0, 1)
