"""The submission of batch scripts to Slurm's queue, and the questions whether jobs are still there.

sbatch's answer goes into a file, next to the script, from which the job's id is read later. The id
of a job on another cluster than this machine's is NUMBER;CLUSTER, as sbatch --parsable prints it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from lsgd.errors import UsageError, converting_disk_full

ARRAYS = Path("runs/arrays")
"""The folder of the batch scripts, job numbers and logs of a study's arrays of Slurm jobs."""
MOST_JOBS = 500
"""The maximum number of jobs of an array: clusters allow 1000 unless their MaxArraySize is less."""


def find_sbatch() -> None:
    """Raise UsageError if this machine has no sbatch."""
    if shutil.which("sbatch") is None:
        raise UsageError(
            "sbatch is not installed; submit where Slurm is, or leave out --launch slurm to train "
            "on this machine"
        )


def most_array_jobs() -> int:
    """Return the number of jobs that an array may have on this machine's cluster."""
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True)
    except FileNotFoundError:
        return MOST_JOBS
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.M)
    # 0 means no arrays, which sbatch itself refuses.
    return min(MOST_JOBS, int(found[1]) or MOST_JOBS) if found else MOST_JOBS


def new_answer_file(folder: Path, name: str) -> Path:
    """Create an empty file for sbatch's answer, under a name that no earlier submission has."""
    with converting_disk_full(folder):
        folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = folder / f"{name}-{number}.job"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path


def sbatch(
    script: str, answer: Path, *, after: Sequence[str] = (), files: Sequence[IO[str]] = ()
) -> str:
    """Submit a batch script and return the job's id; sbatch writes it into `answer`.

    The job begins once those of `after` have ended in any way. sbatch inherits the locks of
    `files`, which so end with it even if this process is killed. Raises UsageError, without an
    answer, if sbatch refuses the script.
    """
    numbers = [split_cluster(job) for job in after]
    options = []
    if after:  # of which a job can only wait for those of its cluster
        cluster = numbers[0][1]
        waited_for = [job for job, its_cluster in numbers if its_cluster == cluster]
        options = [f"--dependency=afterany:{':'.join(waited_for)}", *cluster_option(cluster)]
    path = answer.with_suffix(".sh")
    path.touch(mode=0o600)  # a search's command may have the password of its database
    path.write_text(f"{script}\n", encoding="utf-8")
    with answer.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            ["sbatch", *options, str(path)],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            pass_fds=[file.fileno() for file in files],
        )
    if done.returncode:
        answer.unlink()
        reasons = re.sub(r"^sbatch: error: ", "", done.stderr, flags=re.M).split("\n")
        raise UsageError(f"sbatch refuses {path}: {'; '.join(filter(None, reasons))}")
    job = submitted_job(answer)
    if job is None:
        raise UsageError(f"sbatch has named no job; {answer} has its answer")
    return job


def submitted_job(answer: Path) -> str | None:
    """Return the id of the job that sbatch names in its answer; None if it names none."""
    text = answer.read_text("utf-8", "replace") if answer.exists() else ""
    found = re.search(r"Submitted batch job (\d+)(?: on cluster (\S+))?", text)
    return ";".join(filter(None, found.groups())) if found else None


def planned_job(folder: Path) -> str | None:
    """Return the id of the Slurm job that was last submitted for a planned run, or None.

    `folder` is its run folder, with a file of the same name and .job beside it. The id of a job of
    an array is the array's id and its own number, such as 12_3, or 12_3;CLUSTER.
    """
    path = job_path(folder)
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    task = re.fullmatch(r"job (\d+) of (\S+)\n", text)
    job = submitted_job(ARRAYS / task[2] if task else path)
    return re.sub(r"^\d+", rf"\g<0>_{task[1]}", job) if job and task else job


def split_cluster(job: str) -> tuple[str, str]:
    """Split a job's id into that on its cluster and the cluster, '' for this machine's.

    >>> split_cluster("12_3;gpus"), split_cluster("12")
    (('12_3', 'gpus'), ('12', ''))
    """
    number, _, cluster = job.partition(";")
    return number, cluster


def cluster_option(cluster: str) -> list[str]:
    """Return the option by which Slurm's commands ask a cluster; none for this machine's."""
    return ["--clusters", cluster] if cluster else []


def job_path(folder: Path) -> Path:
    """Return the file with the launcher's output of the last submission of a planned run."""
    return folder.with_name(f"{folder.name}.job")


def is_active(job: str) -> bool:
    """Return whether a job, or any job of an array, is pending or running.

    Raises UsageError, with the reason alone, if squeue cannot answer.
    """
    number, cluster = split_cluster(job)
    question = ["squeue", *cluster_option(cluster), "--noheader", "--format=%T", "--jobs", number]
    # The user's settings for squeue could leave the job out, save the one that asks a federation.
    theirs = re.compile("SQUEUE_(?!FEDERATION$)|SLURM_CLUSTERS$")
    ours = {name: value for name, value in os.environ.items() if not theirs.match(name)}
    try:
        queue = subprocess.run(question, capture_output=True, text=True, errors="replace", env=ours)
    except FileNotFoundError:
        raise UsageError("squeue is not installed here") from None
    if queue.returncode == 0:
        # With --clusters the name of the cluster comes first.
        return bool(re.sub("^CLUSTER:.*", "", queue.stdout, flags=re.M).strip())
    if "Invalid job id" in queue.stderr:
        return False
    raise UsageError(f"squeue fails: {queue.stderr.strip()}")
