"""The check of a job's nodes by real launchers: it names the slow, the broken and the missing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.launching import AS_ROOT, fork_server, write_program
from helpers.slurm import NODES, SlurmCluster
from helpers.started import HANG_TIMEOUT

pytestmark = pytest.mark.distributed

NODE = Path(__file__).parent.parent / "helpers" / "checked_node.py"
ROOT = NODE.parent.parent.parent
ENVIRONMENT = AS_ROOT | {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a python whose processes have known figures, and a torchrun for it.

    They are forks of one process that has imported torch.
    """
    folder = tmp_path_factory.mktemp("programs")
    with fork_server(
        "lsgd.comm.torch", "lsgd.config", environment=os.environ | ENVIRONMENT
    ) as fork:
        write_program(folder / "known", *fork, NODE)
        write_program(folder / "torchrun", *fork, "-m", "torch.distributed.run")
        # A process that never joins needs no Python.
        python = folder / "python"
        python.write_text(
            '#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = "$ABSENT" ] && exec sleep 3600\n'
            f'exec {folder}/known "$@"\n'
        )
        python.chmod(0o755)
        yield folder


def check(
    programs: Path, folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lsgd.launch", *words, "--check"],
        env=os.environ | ENVIRONMENT | {"PYTHON": f"{programs}/python"} | environment,
        cwd=folder, capture_output=True, text=True, timeout=HANG_TIMEOUT,
    )  # fmt: skip


def test_three_nodes_by_torchrun(programs: Path, tmp_path: Path) -> None:
    """A slow node, a slow link and a wrong clock, each by the names of its nodes."""
    faults = json.dumps({"slow": 1, "clock": 2, "link": [0, 2]})
    done = check(
        programs, tmp_path, "torchrun", "digits", "run_dir=run", "--np", "3",
        LSGD_FAULTS=faults, PYTHON_EXEC=f"{programs}/python", ABSENT="none",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "measuring 3 processes by torchrun on 3 nodes" in done.stdout, done.stderr
    assert "\nnode1: matrix product 50 GFLOP/s, 0.50 of the median 100\n" in done.stdout
    ahead = re.search(
        r"\nnode2: its clock is (\d+\.\d) s ahead of that of process 0\n", done.stdout
    )
    assert ahead
    assert 900 < float(ahead[1]) < 1100
    link = "\nnode2 and node0: all-reduce between them 20 MB/s, 0.20 of the median 100\n"
    assert link in done.stdout
    ending = "lsgd: of 3 nodes, these are slow or broken: node1, node2; start the job without them"
    assert ending in done.stderr
    # A check leaves nothing where the run is to be.
    assert not (tmp_path / "run").exists()


@pytest.mark.mpi
def test_a_node_that_does_not_answer_by_mpirun(programs: Path, tmp_path: Path) -> None:
    """The others are measured all the same, and the job ends."""
    words = ["mpirun", "digits", "comm.join_timeout=1", "--np", "3"]
    done = check(programs, tmp_path, *words, LSGD_FAULTS='{"slow": 1, "absent": 2}', ABSENT="2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "\nnode2: process 2 has not joined within 1 s\n" in done.stdout
    # Of two nodes the median is the mean.
    assert "\nnode1: matrix product 50 GFLOP/s, 0.67 of the median 75\n" in done.stdout
    assert "these are slow or broken: node1, node2;" in done.stderr


@pytest.mark.slurm
def test_a_slow_node_of_slurm(programs: Path, tmp_path: Path, slurm: SlurmCluster) -> None:
    """By Slurm's name, with the option that leaves it out, in a log beside the run's folder."""
    done = check(
        programs, tmp_path, "slurm", "digits", f"run_dir={tmp_path}/run", "--nodes", "2",
        "--np", "2",
        SLURM_CONF=slurm.environment["SLURM_CONF"], LSGD_FAULTS='{"slow": 1}', ABSENT="none",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)[1]
    ended = slurm.wait(job, "COMPLETED", "FAILED")
    log = tmp_path / f"run-check-{job}/logs/rank0.log"
    assert ended["JobState"] == "FAILED", (tmp_path / f"run-check-{job}.log").read_text()
    text = log.read_text()
    assert f"\n{NODES[1]}: matrix product 50 GFLOP/s, 0.67 of the median 75\n" in text
    remedy = f"leave them out with --exclude={NODES[1]}\n"
    assert text.endswith(f"of 2 nodes, these are slow or broken: {NODES[1]}; {remedy}")
    assert not (tmp_path / "run").exists()
