import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.job.launcher import (
    DEFAULT_PORT,
    Launch,
    cores,
    detect_launch,
    environment_of,
    hostnames,
    without_launcher,
)

# Recorded: sbatch of 3 tasks on 2 nodes, Slurm 22.05; the batch script, then its third task.
SBATCH = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[007-008]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "3",
    "SLURM_NPROCS": "3",
    "SLURM_TASKS_PER_NODE": "2,1",
    "SLURM_CPUS_ON_NODE": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURMD_NODENAME": "n007",
}
SRUN = SBATCH | {
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[007-008]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURMD_NODENAME": "n008",
}
# Recorded under srun --mpi=pmi2: no local rank of mpiexec's dialect.
PMI2 = {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "11", "PMI_JOBID": "17.0"}
# Recorded: Open MPI 4.1.4, the second of two processes on one machine.
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "2102525952.0;tcp://192.0.2.2:41493;tcp6://[fd00::2]:36707",
    "OMPI_MCA_orte_local_daemon_uri": "2102525952.0;tcp://192.0.2.2:41493;tcp6://[fd00::2]:36707",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "2102525953",
    "PMIX_RANK": "1",
}
# Its fifth of six on two machines.
MPIRUN_ON_TWO = MPIRUN | {
    "OMPI_COMM_WORLD_RANK": "4",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_MCA_orte_local_daemon_uri": "2102525952.1;tcp://192.0.2.3:50211",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "ROLE_RANK": "3",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}
# One process per pod, as a PyTorchJob without nprocPerNode starts it.
PYTORCHJOB = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "bs8k-master-0",
    "MASTER_PORT": "23456",
    "PYTHONUNBUFFERED": "1",
}
HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "15321",
}
HOROVODRUN_ON_TWO = HOROVODRUN | {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"}
MPIEXEC = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, Launch("none", 0, 1, 0, 1)),
        ({"PATH": "/bin", "WORLD_SIZE": "4"}, Launch("none", 0, 1, 0, 1)),
        # As a program under `mpiexec -n 1`, and as a batch script: sbatch runs it once.
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, Launch("none", 0, 1, 0, 1)),
        (SBATCH, Launch("none", 0, 1, 0, 1)),
        (TORCHRUN, Launch("torchrun", 3, 4, 1, 2, "node-0", 29400)),
        (TORCHRUN | {"LSGD_LIFE": "2"}, Launch("torchrun", 3, 4, 1, 2, "node-0", 29400, 2)),
        (PYTORCHJOB, Launch("torchrun", 3, 4, 0, 1, "bs8k-master-0", 23456)),
        (HOROVODRUN, Launch("horovodrun", 1, 2, 1, 2, "127.0.0.1", 25658)),
        (HOROVODRUN_ON_TWO, Launch("horovodrun", 3, 4, 1, 2, None, 25658)),
        (MPIRUN, Launch("mpirun", 1, 2, 1, 2, "127.0.0.1", 25968)),
        (MPIRUN_ON_TWO, Launch("mpirun", 4, 6, 1, 3, "192.0.2.2", 25968)),
        (MPIEXEC, Launch("mpiexec", 2, 4, 0, 2, None, DEFAULT_PORT)),
        (SRUN, Launch("srun", 2, 3, 0, 1, "n007", 21197)),
        (SRUN | PMI2, Launch("srun", 2, 3, 0, 1, "n007", 21197)),
        (SRUN | {"SLURM_NODEID": "0"}, Launch("srun", 2, 3, 0, 2, "n007", 21197)),
        # One of 9 tasks, the last on a node of its own.
        (
            SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_STEP_NUM_TASKS": "9"},
            Launch("srun", 2, 9, 0, 4, "n007", 21197),
        ),
        # A step on the second node alone does not meet on the first.
        (
            SRUN | {"SLURM_STEP_NODELIST": "n008", "SLURM_STEP_ID": "1"},
            Launch("srun", 2, 3, 0, 1, "n008", 26379),
        ),
        # Every process alone in its step, as in an interactive allocation.
        (
            SBATCH | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"},
            Launch("srun", 0, 1, 0, 1, "127.0.0.1", 25282),
        ),
        # mpirun's daemon on the second node was itself started by srun, in a step of that node.
        (
            SRUN | {"SLURM_STEP_NODELIST": "n008"} | MPIRUN_ON_TWO,
            Launch("mpirun", 4, 6, 1, 3, "n007", 25968),
        ),
    ],
)
def test_dialects(environment: dict[str, str], launch: Launch) -> None:
    assert detect_launch(environment) == launch
    # What such a process starts for itself is no process of the job.
    assert detect_launch(without_launcher(environment | {"PMIX_RANK": "1"})) == Launch("none")


# What pyxis and Enroot's hook 50-slurm-pytorch.sh add in an image that has PYTORCH_VERSION.
PYTORCH_IMAGE = {
    "RANK": "2",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "n007",
    "MASTER_PORT": "61017",
    "OMP_NUM_THREADS": "1",
}


def test_ranks_that_repeat_those_of_srun() -> None:
    """Its numbers of processes on each machine count, which the repetition lacks."""
    first = SRUN | PYTORCH_IMAGE | {"SLURM_NODEID": "0"}
    assert detect_launch(first) == Launch("srun", 2, 3, 0, 2, "n007", 61017)
    # An agent of torchrun, or a pod, whose numbers are others.
    assert detect_launch(SRUN | PYTORCH_IMAGE | {"LOCAL_WORLD_SIZE": "1"}).launcher == "torchrun"
    assert detect_launch(SRUN | PYTORCHJOB).launcher == "torchrun"
    assert detect_launch(PYTORCH_IMAGE).launcher == "torchrun"


@pytest.mark.parametrize("life", [None, 0, 3])
@pytest.mark.parametrize("outer", [{}, SRUN, TORCHRUN])
def test_a_process_that_lsgd_numbers(outer: dict[str, str], life: int | None) -> None:
    """It reads what it was given, also inside of another launcher's job."""
    launch = Launch("torchrun", 5, 6, 1, 2, "10.0.0.7", 21000, life)
    assert detect_launch(outer | environment_of(launch)) == launch


@pytest.mark.parametrize("environment", [MPIRUN_ON_TWO, HOROVODRUN_ON_TWO, SRUN, MPIEXEC])
def test_the_user_knows_better_where_processes_meet(environment: dict[str, str]) -> None:
    found = detect_launch(environment | {"MASTER_ADDR": "here", "MASTER_PORT": "1234"})
    assert (found.master_addr, found.master_port) == ("here", 1234)


@pytest.mark.parametrize(
    ("environment", "another"),
    [
        (SRUN, {"SLURM_JOB_ID": "18"}),
        (SRUN, {"SLURM_STEP_ID": "1"}),
        (MPIRUN, {"PMIX_NAMESPACE": "2102525957"}),
        (HOROVODRUN, {"HOROVOD_GLOO_RENDEZVOUS_PORT": "15322"}),
    ],
)
def test_two_jobs_on_a_machine_have_two_ports(
    environment: dict[str, str], another: dict[str, str]
) -> None:
    ports = {
        detect_launch(environment).master_port,
        detect_launch(environment | another).master_port,
    }
    assert len(ports) == 2
    assert all(20000 <= port < 32768 and port != DEFAULT_PORT for port in ports)


@pytest.mark.parametrize(
    ("inner", "launcher"), [(TORCHRUN, "torchrun"), (MPIRUN, "mpirun"), (HOROVODRUN, "horovodrun")]
)
def test_the_innermost_launcher_counts(inner: dict[str, str], launcher: str) -> None:
    """Inside a Slurm job, also where srun starts one agent per node."""
    assert detect_launch(SBATCH | inner).launcher == launcher
    assert detect_launch(SRUN | inner) == detect_launch(inner)
    assert detect_launch(MPIRUN | TORCHRUN).launcher == "torchrun"


@pytest.mark.parametrize(
    "environment",
    [
        # MPICH's mpiexec, which does not say which GPU is this process's; alone, each is rank 0.
        {"PMI_SIZE": "4", "PMI_RANK": "0"},
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun-1"},
        {"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "0"},
        {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"},
    ],
)
def test_processes_that_know_only_that_they_are_several(environment: dict[str, str]) -> None:
    """Each would believe that it is alone and train, beside the others."""
    with pytest.raises(UsageError, match=f"{next(iter(environment))}=.* would train alone"):
        detect_launch(environment)


@pytest.mark.parametrize(
    ("cpus_on_node", "quota", "bound", "local_size", "expected"),
    [
        ("", None, 64, 8, 8),
        # Bound by mpirun or srun.
        ("", None, 4, 8, 4),
        # Slurm gave the job 16 of the 64.
        ("16", None, 64, 8, 2),
        ("16", None, 16, 8, 2),
        ("", None, 64, 100, 1),
        # A container has a share of the processors' time, of which several processes have theirs.
        ("", 8.5, 64, 1, 8),
        ("", 8.5, 64, 4, 2),
        ("4", 8.5, 64, 1, 4),
        ("16", 8.5, 2, 1, 2),
        ("", 0.5, 64, 1, 1),
        ("", 100.0, 64, 1, 64),
    ],
)
def test_cores(
    monkeypatch: pytest.MonkeyPatch,
    cpus_on_node: str,
    quota: float | None,
    bound: int,
    local_size: int,
    expected: int,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound)))
    monkeypatch.setattr("lsgd.job.launcher.cpu_quota", lambda: quota)
    for environment in ({"SLURM_CPUS_ON_NODE": cpus_on_node}, {})[: 1 + (not cpus_on_node)]:
        assert cores(Launch("srun", local_size=local_size), environment) == expected


def test_numbers_of_slurm_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^SLURM_NODEID=x is not a number"):
        detect_launch(SRUN | {"SLURM_NODEID": "x"})
    with pytest.raises(
        UsageError, match=r"^SLURM_NODEID=7, and SLURM_STEP_TASKS_PER_NODE=.* is of"
    ):
        detect_launch(SRUN | {"SLURM_NODEID": "7"})


@pytest.mark.parametrize(("rank", "size"), [("-1", "2"), ("2", "2"), ("0", "0")])
def test_a_rank_is_from_0_and_below_the_world_size(rank: str, size: str) -> None:
    with pytest.raises(UsageError, match=f"^RANK={rank} is not below WORLD_SIZE={size}"):
        detect_launch({"RANK": rank, "WORLD_SIZE": size})
    with pytest.raises(UsageError, match=r"^SLURM_CPUS_ON_NODE=all is not a number; unset it, or"):
        cores(Launch("none"), {"SLURM_CPUS_ON_NODE": "all"})


NUMBERS = st.tuples(st.integers(0, 120), st.integers(0, 4), st.integers(1, 4)).map(
    lambda each: f"{each[0]:0{each[2]}}" + (f"-{each[0] + each[1]:0{each[2]}}" if each[1] else "")
)
BRACKETS = st.lists(NUMBERS, min_size=1, max_size=3).map(lambda each: f"[{','.join(each)}]")
PREFIXES = st.sampled_from(["n", "gpu-", "rack2-node", "10.0.0.", "a.b-c"])
GROUPS = st.one_of(
    st.tuples(PREFIXES, BRACKETS),
    st.tuples(PREFIXES, BRACKETS, st.just("-ib"), BRACKETS),
    st.tuples(PREFIXES, st.integers(0, 9).map(str)),
).map("".join)
NODE_LISTS = st.lists(GROUPS, min_size=1, max_size=4).map(",".join)


@pytest.mark.slurm
def test_node_lists_as_slurm_reads_them(tmp_path: Path) -> None:
    """Brackets, ranges, leading zeros, several groups."""
    scontrol = shutil.which("scontrol")
    assert scontrol
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=h\nNodeName=n\nPartitionName=p Nodes=ALL\n")
    environment = os.environ | {"SLURM_CONF": str(conf)}

    @settings(max_examples=30)
    @given(NODE_LISTS)
    def agree(nodes: str) -> None:
        printed = subprocess.run(
            [scontrol, "show", "hostnames", nodes],
            env=environment, capture_output=True, text=True, timeout=900, check=True,
        ).stdout  # fmt: skip
        assert hostnames(nodes) == printed.split()

    agree()


def test_an_empty_variable_is_an_unset_one() -> None:
    """As `export MASTER_PORT=` leaves it."""
    torchrun = {"RANK": "0", "WORLD_SIZE": "2"}
    empty = {"MASTER_PORT": "", "MASTER_ADDR": "", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}
    assert detect_launch(torchrun | empty) == detect_launch(torchrun)


def test_a_variable_that_is_no_number_is_named() -> None:
    """Kubernetes sets MASTER_PORT in the pods beside a Service that is called master."""
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for key, value in (
        ("MASTER_PORT", "tcp://10.0.0.1:80"),
        ("WORLD_SIZE", "two"),
        ("WORLD_SIZE", ""),
        ("LOCAL_WORLD_SIZE", "x"),
    ):
        with pytest.raises(UsageError, match=f"{key}={value} is not a number; unset it"):
            detect_launch(torchrun | {key: value})
    for value in ("65536", "-1"):
        with pytest.raises(UsageError, match=f"MASTER_PORT={value} must be from 0 to 65535"):
            detect_launch(torchrun | {"MASTER_PORT": value})
