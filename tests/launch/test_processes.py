"""How many processes there are, with how many threads."""

import os
from collections.abc import Callable

import pytest

from lsgd.errors import UsageError
from lsgd.launch import processes
from lsgd.launch.processes import count_processes

Printed = Callable[..., str]


@pytest.mark.parametrize("given", ["", "all", "0"])
def test_threads_share_the_cores(
    printed: Printed, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user has set a number of them."""
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    cores = os.cpu_count() or 1
    for number, threads in ((1, cores), (cores, 1), (3 * cores, 1)):
        assert f"OMP_NUM_THREADS={threads} " in printed("torchrun", "digits", f"--np={number}")
    # Those of one machine, not of all.
    line = printed("mpirun", "digits", "--nodes", "16", "--gpus", "1")
    assert f"-np 16 --map-by ppr:1:node env OMP_NUM_THREADS={cores} " in line
    line = printed("horovodrun", "digits", "--hosts", "a:1,b:3")
    assert f"OMP_NUM_THREADS={cores} " in line
    assert "-np 4 -H a:1" in line


def test_only_the_cores_that_a_job_may_use_here_are_shared(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of taskset or a container; of hosts that are named, each has its own."""
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert "OMP_NUM_THREADS=3 " in printed("torchrun", "digits", "--np=2")
    assert "OMP_NUM_THREADS=6 " in printed("mpirun", "digits", "--np=1")
    assert "OMP_NUM_THREADS=32 " in printed("mpirun", "digits", "--hosts=a:2,b:2")
    monkeypatch.setattr("lsgd.job.launcher.cpu_quota", lambda: 4.5)
    assert "OMP_NUM_THREADS=2 " in printed("torchrun", "digits", "--np=2")


@pytest.mark.parametrize(
    ("launcher", "options", "expected"),
    [
        ("torchrun", {"--np": "3"}, 3),
        ("torchrun", {"--gpus": "4"}, 4),
        ("mpirun", {"--nodes": "2", "--gpus": "4"}, 8),
        ("mpirun", {"--hosts": "a:8,b:4"}, 12),
        ("mpirun", {"--hosts": "a:8,b:4", "--np": "2"}, 2),
        ("slurm", {}, 8),
        ("slurm", {"--nodes": "4"}, 32),
        ("slurm", {"--nodes": "4", "--np": "3"}, 3),
        ("k8s", {"--nodes": "2", "--gpus": "2"}, 4),
        ("local", {}, 77),
    ],
)
def test_what_the_options_ask_for(
    launcher: str, options: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "default_processes", lambda program: 77)
    assert count_processes(launcher, options) == expected


def test_hosts_take_no_more_processes_than_they_are_said_to() -> None:
    """Horovod ends in a traceback then; Open MPI's settings may allow them."""
    options = {"--hosts": "a:1,b:1", "--np": "3"}
    with pytest.raises(UsageError, match=r"--np 3 must not be above 2, the processes of --hosts"):
        count_processes("horovodrun", options)
    assert count_processes("mpirun", options) == 3


def test_a_python_that_is_not_there(
    printed: Printed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is named; and nobody asks for it where the run is in an image."""
    from lsgd.launch.__main__ import main

    monkeypatch.setenv("PYTHON", "/no/python")
    assert main(["mpirun", "digits", "--np", "2", "--print"]) == 2
    assert (
        "there is no Python at /no/python; set PYTHON to an existing one" in capsys.readouterr().err
    )
    assert " python3 -m lsgd.train " in printed("slurm", "digits", "--container", "image")
