"""A search whose trials are in the queue of a real Slurm, on two nodes."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.slurm import SlurmCluster
from helpers.studies import wait_until

from lsgd.run.rows import read_rows
from lsgd.search.record import load_record
from lsgd.search.trial import FINISHED, PRUNED

pytestmark = pytest.mark.distributed
WORDS = ["+search=small", "prune={rule: median, after_trials: 2, after_epochs: 2}"]
OPTIONS = ["--launch", "slurm", "--nodes", "1", "--np", "1", "--jobs", "2"]


@pytest.mark.slurm
def test_trials_stay_in_the_queue_while_nobody_watches(
    tmp_path: Path, slurm: SlurmCluster, installation: Path
) -> None:
    """The search is told to stop, one of its jobs is queued again, and the same command ends it."""

    def search() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "lsgd.search", *WORDS, *OPTIONS],
            cwd=tmp_path, env=slurm.environment | {"PYTHONPATH": str(installation)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def queued() -> list[str]:
        return slurm.ask("squeue", "--noheader", "--format=%i %T").splitlines()

    first = search()
    wait_until(lambda: sum("RUNNING" in line for line in queued()) == 2, seconds=1200)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=600)
    assert first.returncode == 75, said
    assert len(queued()) == 2
    assert "stopped; rerun the same command to resume it" in said
    requeued = queued()[0].split()[0]
    slurm.ask("scontrol", "requeue", requeued)
    second = search()
    rest, _ = second.communicate(timeout=1800)
    assert second.returncode == 0, rest
    # The other job goes on meanwhile, and may be through before anyone looks at it.
    assert f"job {requeued} is already queued or running" in rest
    [folder] = (tmp_path / "runs/searches").iterdir()
    points = load_record(folder).points
    assert len(points) == 6
    assert {point.state for point in points} <= {FINISHED, PRUNED}
    assert len(set(re.findall(r"Submitted batch job (\d+)", said + rest))) == 6
    # One that was given up is not queued again either.
    wait_until(lambda: not queued(), seconds=600)
    for run in (tmp_path / "runs/trials").glob("*[0-9a-f]/"):
        rows = read_rows(run / "metrics.jsonl")
        epochs = [row["epoch"] for row in rows if row["kind"] == "epoch"]
        assert epochs == list(range(1, len(epochs) + 1))
