"""Real sums of two processes, right and wrong."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.broken_machine import broken_environment, remaining_processes
from helpers.launching import fork_command, write_program

from lsgd.doctor import ABSENT, FAIL, PASS, CheckItem, ProbeResult, run_probe, sums

FINE = CheckItem("", PASS, "")


def items(horovod: ProbeResult, mpi: CheckItem = FINE) -> dict[str, CheckItem]:
    found = sums.all_reduces(ProbeResult({}), horovod, mpi, FINE, limit=100)
    return {item.name.removeprefix("all-reduce "): item for item in found}


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.horovod
@pytest.mark.mpi
def test_sums_with_horovod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root too, whatever the environment permits it; torch's own is in test_doctor.py."""
    python = write_program(tmp_path / "python", *fork_command())

    def run_horovods(
        probe: str, library: str, *rest: str, launcher: Sequence[str], **options: Any
    ) -> ProbeResult:
        if library == "torch":
            return ProbeResult({}, "not tried")
        launcher = [python if word == sys.executable else word for word in launcher]
        return run_probe(probe, library, *rest, launcher=launcher, **options)

    monkeypatch.setattr(sums, "run_probe", run_horovods)
    built = {"Gloo": True, "MPI": True, "NCCL": False}
    refuses = CheckItem("MPI", FAIL, "Open MPI 4.1.4, which refuses root", "")
    found = items(ProbeResult({"version": "0.28.1", "built": built}), refuses)
    for name in ("Horovod Gloo", "Horovod MPI"):
        assert found[name].status == PASS, found[name]
        assert found[name].numbers["mb_per_s"] > 0
    assert found["Horovod NCCL"].found == "Horovod is not built with NCCL"


@pytest.mark.distributed
def test_a_process_that_never_comes_is_no_hang(tmp_path: Path) -> None:
    faults = broken_environment(tmp_path) | {"TEST_SLEEPING_RANK": "1"}
    answer = run_probe(
        "all_reduce", "torch", "cpu", limit=4, launcher=sums.TORCHRUN, environment=faults
    )
    assert answer.failure_reason.startswith("it did not end in 4 s")
    assert remaining_processes(faults) == []


def test_what_cannot_be_summed_is_not_tried() -> None:
    """A Horovod that does not load, or an mpirun that does not start, says so in its own item."""
    for horovod in (ProbeResult({"version": None}), ProbeResult({}, "it crashed with SIGSEGV")):
        absent = list(sums.all_reduces(ProbeResult({}, "no torch"), horovod, FINE, FINE, limit=1))
        assert [item.status for item in absent] == [ABSENT] * 5


@pytest.mark.parametrize(
    ("facts", "why", "found"),
    [
        (
            {"processes": 2, "wrong": [1], "mb_per_s": 9.0},
            "",
            "the all-reduce result is wrong on process 1",
        ),
        ({"processes": 1, "wrong": [], "mb_per_s": 9.0}, "", "1 processes joined, not 2"),
        ({}, "it crashed with SIGSEGV", "it crashed with SIGSEGV"),
    ],
)
def test_a_wrong_sum_fails(facts: dict[str, object], why: str, found: str) -> None:
    item = sums.all_reduce("all-reduce torch gloo", ProbeResult(dict(facts), why), "do this")
    assert (item.status, item.found, item.fix) == (FAIL, found, "do this")


WRONG = """
import torch
from torch import distributed
really = distributed.all_reduce
def all_reduce(tensor, *rest, **options):
    work = really(tensor, *rest, **options)
    tensor[7] += 1
    return work
distributed.all_reduce = all_reduce
from lsgd.doctor.probe import all_reduce
[facts] = all_reduce("torch", "cpu")
print(facts)
"""


@pytest.mark.slow
def test_the_probe_sees_a_wrong_sum(tmp_path: Path) -> None:
    """One process of one, whose library adds 1 to an element."""
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [*fork_command(), "-c", WRONG], env=os.environ | one,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "'wrong': [0]" in done.stdout
