"""One run by every launcher, on real ones: it ends equal, and a requeued one goes on."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.launching import AS_ROOT, WITHOUT_COMPILER, launch
from helpers.reference_run import LINGERING, WORDS, assert_equal
from helpers.slurm import NODES, SlurmCluster
from helpers.started import HANG_TIMEOUT
from helpers.unresolvable_host import unresolvable_host_command

from lsgd.launch.__main__ import main
from lsgd.run.rows import read_rows

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = AS_ROOT | {
    "PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join((WITHOUT_COMPILER, str(ROOT))),
    "OMP_NUM_THREADS": "1",
    # Where there are fewer cores than processes.
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

RUN = ["digits", *WORDS[1:]]
"""What a launch script is given, for the run that one process makes undisturbed."""


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "launch" / f"{name}.sh", *arguments],
        env=os.environ | ENVIRONMENT | environment, capture_output=True, text=True,
        timeout=HANG_TIMEOUT,
    )  # fmt: skip


def submit(slurm: SlurmCluster, *arguments: str) -> str:
    """The number of the job that launch/slurm.sh submits."""
    done = script("slurm", *arguments, SLURM_CONF=slurm.environment["SLURM_CONF"])
    assert done.returncode == 0, done.stderr
    return re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)[1]


@pytest.mark.parametrize(
    ("launcher", "processes", "library"),
    [
        ("torchrun", 2, "torchrun over torch.distributed (gloo)"),
        pytest.param("horovodrun", 2, "horovodrun over Horovod (Gloo)", marks=pytest.mark.horovod),
        pytest.param(
            *("mpirun", 3, "mpirun over Horovod (MPI)"),
            marks=[pytest.mark.horovod, pytest.mark.mpi],
        ),
    ],
)
def test_launched_by(
    tmp_path: Path, undisturbed: Path, launcher: str, processes: int, library: str
) -> None:
    folder = tmp_path / "run"
    words = [*RUN, f"run_dir={folder}", "--np", str(processes)]
    # With all of torch over MPI; over the other libraries forks have it, as in test_pages.py.
    whole = {"PYTHONPATH": str(ROOT)} if launcher == "mpirun" else {}
    done = script(launcher, *words, **whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{processes} processes by {library}" in done.stdout
    assert_equal(folder, undisturbed)
    # What every process said, each in a file of its own.
    logs = [path for path in (folder / "logs" / "start1").rglob("*stdout*") if path.is_file()]
    assert len(logs) == processes
    assert [f"run folder {folder}" in path.read_text() for path in logs].count(True) == 1


def test_a_machine_without_a_name_or_a_home(tmp_path: Path, undisturbed: Path) -> None:
    """By one command, which says why it is not over Horovod, if that is there."""
    folder, home = tmp_path / "run", tmp_path / "no_folder"
    home.touch()
    done = subprocess.run(
        [
            *unresolvable_host_command(), sys.executable, "-m", "lsgd.launch", "local", *RUN,
            f"run_dir={folder}", "--np", "2",
        ],
        env=os.environ | ENVIRONMENT | {"HOME": str(home)}, capture_output=True, text=True,
        timeout=HANG_TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes by torchrun over torch.distributed (gloo)" in done.stdout
    assert_equal(folder, undisturbed)


@pytest.mark.parametrize("launcher", ["singly", pytest.param("ray", marks=pytest.mark.ray)])
def test_launched_one_by_one(tmp_path: Path, undisturbed: Path, launcher: str) -> None:
    """And what process 0 prints arrives."""
    folder = tmp_path / "run"
    done = script(launcher, *RUN, f"run_dir={folder}", "--np", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"run folder {folder}" in done.stdout
    assert_equal(folder, undisturbed)


@pytest.mark.slurm
def test_submitted_to_two_nodes_and_requeued_in_mid_epoch(
    tmp_path: Path, undisturbed: Path, slurm: SlurmCluster,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Without MASTER_ADDR, and without Slurm's PMI: the node list says where they meet.

    A site's own options arrive, its hook is read, and the run folder says which job has trained.
    It comes back under its number, in its folder and its logs, and ends equal.
    """
    folder, processes = tmp_path / "run", 3
    # Evaluations that take a while, so that the run is not over before it is queued again.
    words = [*RUN, "checkpoint_steps=1", LINGERING, f"run_dir={folder}"]
    hook = tmp_path / "hook.sh"
    hook.write_text("module() { echo the module of this site; }\nmodule\n")
    more = ["--setup", str(hook), "--comment", 'a "b" # c', "--no-kill"]
    job = submit(slurm, *words, "--nodes", "2", "--np", str(processes), *more)
    deadline = time.monotonic() + HANG_TIMEOUT
    while not any(row["step"] >= 8 for row in read_rows(folder / "metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    slurm.ask("scontrol", "requeue", job)
    slurm.wait(job, "PENDING")
    slurm.wait_until_idle()
    # Slurm would let it wait two minutes; in the second of its end its credential is void.
    slurm.ask("scontrol", "update", f"jobid={job}", "starttime=now+2")
    ended = slurm.wait(job, "COMPLETED", "FAILED")
    log = (tmp_path / "run.log").read_text()
    logs = [path.read_text() for path in sorted((folder / "logs").glob("rank*.log"))]
    assert ended["JobState"] == "COMPLETED", log + "".join(logs)
    assert ended["Restarts"] == "1"
    assert re.findall(r"start \d", log) == ["start 1", "start 2"]
    assert len(logs) == processes
    assert f"{processes} processes by srun over torch.distributed (gloo)" in logs[0]
    assert len(re.findall("^run folder ", logs[0], re.MULTILINE)) == 2
    resumed = re.findall(r"resumes after step (\d+)", logs[0])
    assert len(resumed) == 1
    assert 7 <= int(resumed[0]) < 20  # a row is written before its checkpoint
    nodes = f"127.0.0.[{NODES[0][-1]}-{NODES[1][-1]}]"
    assert nodes in log
    assert "the module of this site" in log
    assert 'Comment=a "b" # c' in slurm.ask("scontrol", "show", "job", job)
    record = json.loads((folder / "logs/job.json").read_text())
    assert (record["job"], record["nodes"]) == (job, nodes)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    assert main(["--status", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"{folder}: finished\n" in said
    assert f"job    {job} COMPLETED on {nodes}" in said
    assert f"logs   {tmp_path / 'run.log'}\n" in said
    assert_equal(folder, undisturbed)


@pytest.mark.slurm
@pytest.mark.horovod
@pytest.mark.mpi
def test_horovod_over_mpi_under_srun(
    tmp_path: Path, undisturbed: Path, slurm: SlurmCluster
) -> None:
    """srun --mpi=pmix, on one node: two slurmd on a machine want the same folder for it."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [
            "srun", "--mpi=pmix", "--nodes=1", "--ntasks=2",
            sys.executable, "-m", "lsgd.train", "+recipe=digits", *RUN[1:], f"run_dir={folder}",
        ],
        env=slurm.environment | ENVIRONMENT, capture_output=True, text=True, timeout=HANG_TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 processes by srun over Horovod (MPI)" in done.stdout
    assert_equal(folder, undisturbed)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Two network namespaces, joined by a cable: the name of the first, and the way to the second.

    They have an address each, 10.213.0.2 and 10.213.0.3, and nothing else of a network in common,
    so that processes which meet on 127.0.0.1 do not.
    """
    names = [f"lsgd{os.getpid()}{each}" for each in "ab"]
    cable = [f"lsgd{os.getpid() % 100000}{each}" for each in "ab"]
    # Not called ssh, which Open MPI would give options.
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {names[1]} /bin/sh -c "$*"\n')
    shell.chmod(0o755)
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        joined = f"{cable[0]} netns {names[0]} type veth peer name {cable[1]} netns {names[1]}"
        subprocess.run(["ip", "link", "add", *joined.split()], check=True)
        for number, (name, end) in enumerate(zip(names, cable, strict=True), 2):
            for words in (
                f"link set {end} name cable",
                f"address add 10.213.0.{number}/24 dev cable",
                "link set cable up",
                "link set lo up",
            ):
                subprocess.run(["ip", "-n", name, *words.split()], check=True)
        yield names[0], shell
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.mark.netns
@pytest.mark.mpi
def test_mpirun_on_two_machines(
    tmp_path: Path, undisturbed: Path, machines: tuple[str, Path]
) -> None:
    """comm=torch over two of them, without MASTER_ADDR."""
    first, shell = machines
    folder = tmp_path / "run"
    words = [*RUN, "comm=torch", "comm.join_timeout=300", f"run_dir={folder}"]
    done = subprocess.run(
        [
            "ip", "netns", "exec", first, "bash", ROOT / "launch" / "mpirun.sh", *words,
            "--hosts", "10.213.0.2:2,10.213.0.3:1",
        ],
        env=os.environ | ENVIRONMENT | {
            "OMPI_MCA_plm_rsh_agent": str(shell),
            # Both have this machine's name, whose address is on neither.
            "GLOO_SOCKET_IFNAME": "cable",
        },
        capture_output=True, text=True, timeout=HANG_TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 processes by mpirun over torch.distributed (gloo)" in done.stdout
    assert_equal(folder, undisturbed)


@pytest.mark.mpi
def test_a_wrong_master_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends within the limit, naming where the processes should have met."""
    # A network for documentation: nobody answers.
    monkeypatch.setenv("MASTER_ADDR", "198.51.100.7")
    words = ["comm=torch", "comm.join_timeout=3", f"run_dir={tmp_path / 'run'}"]
    done = launch("horovod-mpi", 2, "-m", "lsgd.train", "+recipe=digits", *RUN[1:], *words)
    assert done.returncode == 5
    assert re.search(
        r"process \d of 2 could not rendezvous with the others at 198.51.100.7:2\d{4} within 3 s",
        done.stderr,
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slurm
def test_a_study_is_submitted_once(tmp_path: Path, slurm: SlurmCluster, installation: Path) -> None:
    """Its trial is not submitted again while it is queued, and reported on when it is through."""

    def study(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "lsgd.study", "+study=single", *options],
            cwd=tmp_path, env=slurm.environment | {"PYTHONPATH": str(installation)},
            capture_output=True, text=True, timeout=HANG_TIMEOUT,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    submit = ["--launch", "slurm", "--nodes", "1", "--np", "1"]
    code, said = study(*submit)
    assert code == 75, said
    job = re.search(r"single: job (\d+) has 1 run, processes of each: 1\n", said)[1]
    report = re.search(r"single: job (\d+) will write the report\n", said)[1]
    code, said = study(*submit)
    assert code == 75
    assert f"digits, seed 0: job {job}_0 is already queued or running\n" in said
    code, said = study("--np", "1")
    assert code == 1
    assert f"failed: digits, seed 0: job {job}_0 is to train it; wait for that or cancel it" in said
    slurm.wait(job, "COMPLETED")
    slurm.wait(report, "COMPLETED")
    assert (tmp_path / "runs/studies/single/index.html").exists()
    code, said = study(*submit)
    assert code == 0, said
    assert "1 run, 0 to train" in said
    assert slurm.ask("squeue", "--noheader") == ""
