"""How the processes of a job leave it, where closing waits for all of them, as NCCL does."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from helpers.launching import fork_command
from helpers.reference_run import rows
from helpers.started import HANG_TIMEOUT

from lsgd.job.members import JOB_TAG, process_records
from lsgd.run.lock import FILE
from lsgd.supervise.singly import free_port

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]

# Stands in for NCCL: gloo, whose group is destroyed only once all processes do so, without a limit.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import torch.distributed as dist
from lsgd import train
from lsgd.errors import InputFailedError

folder, how, rank = Path(sys.argv[1]), sys.argv[2], os.environ["RANK"]

def destroy_with_all(group):
    (folder / f"closing{rank}").touch()
    while len(list(folder.glob("closing*"))) < 2:
        time.sleep(0.01)
    destroy(group)

def step_or_fail(learner, task, batches):
    if (task.step, rank) == (3, "1"):
        if how == "input":
            raise InputFailedError("n0144.JPEG cannot be read")
        if how == "bug":
            raise RuntimeError("out of luck")
        if how == "interrupt":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)
    step(learner, task, batches)

destroy, dist.destroy_process_group = dist.destroy_process_group, destroy_with_all
step, train.train_step = train.train_step, step_or_fail
words = "+recipe=digits workers=2 device=cpu log_steps=1 comm=torch".split()
sys.exit(train.main([*words, f"run_dir={folder}/run"]))
"""


@pytest.mark.parametrize(
    ("how", "codes", "says", "why"),
    [
        ("input", [5, 4], "lsgd: process 1: n0144.JPEG cannot be read\n", "n0144.JPEG"),
        ("bug", [5, 1], "Traceback (most recent call last)", "RuntimeError: out of luck"),
        ("interrupt", [5, 130], "", "interrupted"),
        ("signal", [75, 75], "lsgd: preempted by a signal: saved", "preempted"),
    ],
    ids=["input", "bug", "interrupt", "signal"],
)
def test_who_fails_alone_says_so_and_leaves_at_once(
    tmp_path: Path, how: str, codes: list[int], says: str, why: str
) -> None:
    """And who leaves together with all others closes the group, as 75 shows."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launch = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    launch |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    said, jobs = [tmp_path / "said0", tmp_path / "said1"], []
    for rank, path in enumerate(said):
        variables = launch | {"RANK": str(rank), "LOCAL_RANK": str(rank), JOB_TAG: str(tmp_path)}
        with path.open("w") as stderr:
            jobs.append(
                subprocess.Popen(
                    [*fork_command(), str(program), str(tmp_path), how],
                    env=os.environ | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                )
            )
    together, deadline = codes[0] == codes[1], time.monotonic() + HANG_TIMEOUT
    try:
        while None in [job.poll() for job in jobs]:
            assert together or not list(tmp_path.glob("closing*"))
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [job.returncode for job in jobs] == codes
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert len(list(tmp_path.glob("closing*"))) == 2 * together
    speaker = 0 if how == "signal" else 1
    assert says in said[speaker].read_text()
    # Nothing of what was written is lost, and nothing is left that would keep another job out.
    words = process_records(tmp_path)
    assert [member.code for member in words] == codes
    assert words[speaker].why.startswith(why)
    assert len(rows(tmp_path / "run", "train")) >= 3
    assert not (tmp_path / "run" / FILE).exists()
