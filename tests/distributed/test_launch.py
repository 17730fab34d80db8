"""One run by every launcher, on real ones: it ends equal, and a requeued one goes on."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lsgd import config
from lsgd.metrics import read_rows
from lsgd.train import train

sys.path.insert(0, str(Path(__file__).parent))
from launching import AS_ROOT, launch
from slurm import NODES, Cluster, cluster

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = AS_ROOT | {
    "PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    # Where there are fewer cores than processes.
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# 23 steps an epoch; the last of each is short.
DIGITS = [
    "workers=8", "worker_batch=8", "precision=float64", "tail=keep", "epochs=3",
    "schedule.reference_batch=16", "schedule.reference_lr=0.0125", "schedule.warmup_epochs=0.8",
    "schedule.milestones=[2]", "model.last_gamma=1.0", "log_steps=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster() as found:
        yield found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run on one process, undisturbed."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    train(config.load_recipe(["+recipe=digits", *DIGITS, f"run_dir={folder}"]))
    return folder


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "launch" / f"{name}.sh", "digits", *DIGITS, *arguments],
        env=os.environ | ENVIRONMENT | environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def submit(slurm: Cluster, *arguments: str) -> str:
    """The number of the job that launch/slurm.sh submits."""
    done = script("slurm", *arguments, SLURM_CONF=slurm.environment["SLURM_CONF"])
    assert done.returncode == 0, done.stderr
    return re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)[1]


def assert_equal_runs(one: Path, other: Path) -> None:
    """The lr of every step, and all that training has changed, to 1e-10 in float64."""

    def steps(folder: Path) -> list[tuple[int, float]]:
        rows = read_rows(folder / "metrics.jsonl")
        return [(row["step"], row["lr"]) for row in rows if row["kind"] == "train"]

    assert steps(one) == steps(other)
    assert len(steps(one)) == 69
    final = [torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (one, other)]
    for key, expected in final[0]["model"].items():
        assert (final[1]["model"][key].double() - expected.double()).abs().max() < 1e-10
    momenta = [found["optimizer"]["state"] for found in final]
    for key, expected in momenta[0].items():
        difference = momenta[1][key]["momentum_buffer"] - expected["momentum_buffer"]
        assert difference.abs().max() < 1e-10
    assert final[0]["errors"] == final[1]["errors"]


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(
    ("launcher", "library"),
    [
        ("torchrun", "torchrun over torch.distributed (gloo)"),
        pytest.param("horovodrun", "horovodrun over Horovod (Gloo)", marks=pytest.mark.horovod),
        pytest.param(
            "mpirun",
            "mpirun over Horovod (MPI)",
            marks=[pytest.mark.horovod, pytest.mark.mpi],
        ),
    ],
)
def test_launched_by(
    tmp_path: Path, alone: Path, launcher: str, library: str, processes: int
) -> None:
    ended_equal(tmp_path / "run", alone, launcher, library, processes)


def test_launched_locally(tmp_path: Path, alone: Path) -> None:
    """By horovodrun or torchrun, whichever is there."""
    ended_equal(tmp_path / "run", alone, "local", "", 2)


def ended_equal(folder: Path, alone: Path, launcher: str, library: str, processes: int) -> None:
    """Launch the run on so many processes into the folder, and compare it."""
    done = script(launcher, f"run_dir={folder}", "--np", str(processes))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{processes} processes by {library}" in done.stdout
    assert_equal_runs(alone, folder)
    # What every process said, each in a file of its own.
    logs = [path for path in (folder / "logs" / "start1").rglob("*stdout*") if path.is_file()]
    assert len(logs) == processes
    assert [f"run folder {folder}" in path.read_text() for path in logs].count(True) == 1


@pytest.mark.slurm
@pytest.mark.parametrize("processes", [2, 3])
def test_submitted_to_two_nodes(
    tmp_path: Path, alone: Path, slurm: Cluster, processes: int
) -> None:
    """Without MASTER_ADDR, and without Slurm's PMI: the node list says where they meet."""
    folder = tmp_path / "run"
    job = submit(slurm, f"run_dir={folder}", "--nodes", "2", "--np", str(processes))
    ended = slurm.wait(job, "COMPLETED", "FAILED")
    logs = [path.read_text() for path in sorted((folder / "logs").glob("rank*.log"))]
    assert ended["JobState"] == "COMPLETED", (tmp_path / "run.log").read_text() + "".join(logs)
    assert len(logs) == processes
    assert f"{processes} processes by srun over torch.distributed (gloo)" in logs[0]
    assert f"127.0.0.[{NODES[0][-1]}-{NODES[1][-1]}]" in (tmp_path / "run.log").read_text()
    assert_equal_runs(alone, folder)


@pytest.mark.slurm
def test_requeued_in_mid_epoch(tmp_path: Path, alone: Path, slurm: Cluster) -> None:
    """The job comes back under its number, in its folder and its logs, and ends equal."""
    folder = tmp_path / "run"
    job = submit(slurm, f"run_dir={folder}", "checkpoint_steps=1", "--nodes", "2", "--np", "2")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if [row for row in read_rows(folder / "metrics.jsonl") if row["step"] >= 25]:
            break
        time.sleep(0.02)
    slurm.ask("scontrol", "requeue", job)
    slurm.wait(job, "PENDING")
    slurm.wait_until_idle()
    # Slurm would let it wait two minutes; in the second of its end its credential is void.
    slurm.ask("scontrol", "update", f"jobid={job}", "starttime=now+2")
    ended = slurm.wait(job, "COMPLETED", "FAILED")
    log = (folder / "logs" / "rank0.log").read_text()
    assert ended["JobState"] == "COMPLETED", (tmp_path / "run.log").read_text() + log
    assert ended["Restarts"] == "1"
    assert re.findall(r"start \d", (tmp_path / "run.log").read_text()) == ["start 1", "start 2"]
    resumed = re.findall(r"resumes after step (\d+)", log)
    assert len(resumed) == 1
    # The row of a step is written before its checkpoint, and the second epoch ends with step 46.
    assert 24 <= int(resumed[0]) < 69
    assert int(resumed[0]) != 46
    assert_equal_runs(alone, folder)


@pytest.mark.slurm
@pytest.mark.horovod
@pytest.mark.mpi
def test_horovod_over_mpi_under_srun(tmp_path: Path, alone: Path, slurm: Cluster) -> None:
    """srun --mpi=pmix, on one node: two slurmd on a machine want the same folder for it."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [
            "srun", "--mpi=pmix", "--nodes=1", "--ntasks=2",
            sys.executable, "-m", "lsgd.train", "+recipe=digits", *DIGITS, f"run_dir={folder}",
        ],
        env=slurm.environment | ENVIRONMENT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 processes by srun over Horovod (MPI)" in done.stdout
    assert_equal_runs(alone, folder)


@pytest.mark.mpi
def test_a_wrong_master_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends within the limit, naming where the processes should have met."""
    # A network for documentation: nobody answers.
    monkeypatch.setenv("MASTER_ADDR", "198.51.100.7")
    words = ["comm=torch", "comm.join_timeout=3", f"run_dir={tmp_path / 'run'}"]
    done = launch("horovod-mpi", 2, "-m", "lsgd.train", "+recipe=digits", *DIGITS, *words)
    assert done.returncode == 2
    assert re.search(
        r"process \d of 2 could not meet the others at 198.51.100.7:2\d{4} within 3 s", done.stderr
    )
    assert not (tmp_path / "run").exists()


def test_a_launcher_that_is_not_known(tmp_path: Path) -> None:
    """One of several processes, which would all train alone, ends at once."""
    done = subprocess.run(
        [sys.executable, "-m", "lsgd.train", "+recipe=digits", f"run_dir={tmp_path / 'run'}"],
        env=os.environ | {"PMI_RANK": "0", "PMI_SIZE": "2"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("lsgd: PMI_SIZE=2 says that this is one of several processes")
    assert not (tmp_path / "run").exists()


def test_two_jobs_started_together_have_two_folders(tmp_path: Path) -> None:
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "lsgd.train", "+recipe=digits", "rehearse=true"],
            cwd=tmp_path, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]  # fmt: skip
    assert [job.wait(timeout=120) for job in jobs] == [0, 0]
    folders = sorted((tmp_path / "runs" / "digits").iterdir())
    assert len(folders) == 2
    for folder in folders:
        rows = read_rows(folder / "metrics.jsonl")
        assert [row["kind"] for row in rows].count("start") == 1
