"""A search whose trials are an array of jobs on a real Slurm of two nodes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.slurm import SlurmCluster
from helpers.studies import wait_until

from lsgd.run.rows import read_rows
from lsgd.search.record import load_record
from lsgd.search.trial import FINISHED

pytestmark = pytest.mark.distributed
WORDS = ["+search=small", "trials=4", "holdout_seeds=[5]"]
OPTIONS = ["--launch", "slurm", "--np", "1", "--cpus", "1", "--jobs", "2"]


@pytest.mark.slurm
def test_each_trial_is_a_job_of_an_array_and_a_requeued_one_goes_on(
    tmp_path: Path, slurm: SlurmCluster, installation: Path
) -> None:
    """Two at a time on shared nodes; then the comparison, then the report, each by jobs."""

    def search(*more: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "lsgd.search", *WORDS, *OPTIONS, *more],
            cwd=tmp_path, env=slurm.environment | {"PYTHONPATH": str(installation)},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def epochs() -> dict[str, list[int]]:
        runs = (tmp_path / "runs/trials").glob("*[0-9a-f]/metrics.jsonl")
        return {
            path.parent.name: [row["epoch"] for row in read_rows(path) if row["kind"] == "epoch"]
            for path in runs
        }

    code, said = search()
    assert code == 75, said
    numbers = [re.search(rf"job (\d+){what}", said) for what in (
        ": 4 trials, processes of each: 1, 2 at a time", ": 2 comparisons", " will write the report"
    )]  # fmt: skip
    trials, comparisons, report = (found[1] for found in numbers)
    code, said = search()
    assert code == 75
    assert f"jobs {trials}, {comparisons}, {report} of this search are pending or running" in said

    wait_until(lambda: any(epochs().values()), seconds=1200)
    code, said = search("--status")
    assert code == 0, said
    trial = rf"^\| trial 1, seed 0 +\|.* {trials}_[01] \| (RUNNING|COMPLETED) .*127.*digits-seed0-"
    assert re.search(trial, said, re.M), said
    assert re.search(rf"^\| report .* {report} \| PENDING, waits for Dep", said, re.M), said
    running = slurm.ask("squeue", "--noheader", "--states=RUNNING", "--format=%i")
    assert len(running.split()) <= 2
    slurm.ask("scontrol", "requeue", f"{trials}_0")
    # Slurm would let it wait two minutes.
    slurm.ask("scontrol", "update", f"jobid={trials}_0", "starttime=now+2")
    slurm.wait(report, "COMPLETED", "FAILED")
    logs = "".join(path.read_text() for path in tmp_path.glob("runs/searches/*/jobs/*.log"))
    for job in (f"{trials}_{n}" for n in range(4)):
        assert slurm.state(job)["JobState"] == "COMPLETED", logs
    [folder] = (tmp_path / "runs/searches").iterdir()
    record = load_record(folder)
    assert [point.state for point in record.points] == [FINISHED] * 4, logs
    assert (len(record.best), len(record.default)) == (1, 1), logs
    assert len(epochs()) == 6
    assert all(each == [1, 2, 3, 4] for each in epochs().values()), epochs()
    code, said = search()
    assert code == 0, said
    assert "best: top-1 error" in said
    assert slurm.ask("squeue", "--noheader") == ""
