"""The status of Slurm jobs: of one run, `lsgd launch --status RUN`, and of a study or a search."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsgd.errors import UsageError
from lsgd.launch.slurm import JOB_FILE
from lsgd.launch.submission import cluster_option, planned_job, split_cluster
from lsgd.paths import parse_path
from lsgd.run.read import NotARunError, read_run
from lsgd.sanitizing import sanitize
from lsgd.tables import markdown_table

ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")
"""The states of Slurm's jobs that have not ended."""
NO_TASK = "4294967294"
"""The number that Slurm has for the task of an array's jobs that have not begun."""
TASKS = r"(?P<first>\d+)(-(?P<last>\d+)(:(?P<step>\d+))?)?"
"""The pattern of a part of Slurm's list of array tasks: a number, a range, or a range by a step."""
CLUSTER = "Cluster"
"""The key of a job's cluster, '' for this machine's, which is added to the fields of scontrol."""
RECORD_KEYS = {"job", "nodes", "start", "began", "log", "process_logs"}
"""The keys of JOB_FILE, which a Slurm job writes into its run folder when it starts."""


def print_status(arguments: Sequence[str]) -> int:
    """Print a run's progress, its Slurm job with its nodes, and its logs; return the exit code.

    The exit code is 0 if the run has finished or its job is queued or running, else 1. Raises
    UsageError if no job of this folder is known.
    """
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise UsageError("--status takes one run folder; write lsgd launch --status RUN")
    folder = parse_path(arguments[0])
    try:
        run = read_run(folder, train_rows=False)
    except NotARunError:
        run = None
    record = _last_start(folder)
    absolute = Path(os.path.abspath(folder))
    known = [job for job in (planned_job(absolute), record and record["job"]) if job]
    jobs = _show(known)
    job = _queued_job(jobs, absolute)
    for number in known:
        job = job or _find(jobs, number)
    if not record and not job and run is None:
        raise UsageError(
            f"{folder} has no run and no Slurm job; write the run_dir of a run, such as "
            "runs/bs8k/slurm-4711, or lsgd study study=NAME --status for all runs of a study"
        )
    print(f"run    {folder}: {run.state if run else 'has not begun'}")
    state = job.get("JobState", "")
    for line in _job_lines(job, record):
        print(line)
    if record:
        log = folder / record["log"]
        # It is beside the path of run_dir, which may be a link; or RUN is another link to that.
        beside = Path(os.path.abspath(log))
        log = log.resolve() if log.exists() and not beside.exists() else beside
        print(f"logs   {log}")
        if record["process_logs"]:
            print(f"       {folder / record['process_logs']}, one of each process")
            log = folder / "logs/rank0.log"
        if last := last_line(log):
            print(f"       {'process 0' if record['process_logs'] else 'it'} ends with: {last}")
    return 0 if state in ACTIVE or (run and run.finished) else 1


@dataclass(frozen=True)
class QueuedRun:
    """A run of a study or a search, and the Slurm job that was submitted for it."""

    name: str
    folder: Path
    state: str
    has_ended: bool
    job: str | None
    """The id of the job, such as 12_3; None if the job chooses its run as it starts."""


def job_table(
    runs: Sequence[QueuedRun], submitted: Mapping[str, str], *, runs_left: bool
) -> tuple[str, bool]:
    """Return a table of runs with their Slurm jobs, and whether a run is left without a job.

    `submitted` are the ids of jobs and arrays that choose their runs, with the name of what they
    train; those that have not chosen one have rows of their own. `runs_left` is whether they still
    have runs to choose.
    """
    rows, found, is_abandoned = list[list[str]](), list[dict[str, str]](), False
    choosing = False
    records = [_last_start(run.folder) for run in runs]
    numbers = [
        run.job or (record["job"] if record else "")
        for run, record in zip(runs, records, strict=True)
    ]
    jobs = _show([*numbers, *submitted])
    for run, record, number in zip(runs, records, numbers, strict=True):
        job = _find(jobs, number)
        found += [job] if job else []
        is_abandoned |= not run.has_ended and job.get("JobState") not in ACTIVE
        nodes, log = _nodes(job), _log(job, number)
        # The record of a search's trial has the job's number alone.
        if record and split_cluster(record["job"])[0] == split_cluster(number)[0]:
            nodes, log = record["nodes"], os.path.relpath(run.folder / record["log"])
        gone = "unknown to Slurm by now" if number else "none"
        rows.append([run.name, run.state, number, _state(job) if job else gone, nodes, log])
    for array, name in submitted.items():
        array, cluster = split_cluster(array)
        of_array = [job for job in jobs if array in (job.get("ArrayJobId"), job["JobId"])]
        for job in _on_cluster(of_array, cluster):
            if job["JobState"] in ACTIVE and job not in found:
                number = _number(job)
                choosing |= "ArrayJobId" in job  # and the job of the report is none
                rows.append([name, "", number, _state(job), _nodes(job), _log(job, number)])
    head = ["run", "progress", "job", "state of the job", "nodes", "log"]
    table = markdown_table(head, [list(map(sanitize, row)) for row in rows])
    return table, (is_abandoned or runs_left) and not choosing


def _state(job: Mapping[str, str]) -> str:
    """Return a job's state, with the reason why it waits."""
    waits = job["JobState"] == "PENDING"
    return f"PENDING, waits for {job.get('Reason', 'None')}" if waits else job["JobState"]


def _nodes(job: Mapping[str, str]) -> str:
    """Return the nodes of a job; an empty string before it has any."""
    return job.get("NodeList", "").replace("(null)", "")


def _log(job: Mapping[str, str], number: str) -> str:
    """Return the path of a job's log relative to this folder, or an empty string."""
    if not job.get("StdOut"):
        return ""
    # The log of an array's jobs that have not begun has a number that stands for none.
    task = split_cluster(number)[0].partition("_")[2]
    path = job["StdOut"].replace(NO_TASK, task if task.isdigit() else "*")
    return os.path.relpath(path)


def _number(job: Mapping[str, str]) -> str:
    """Return a job's id, such as 12, 12_3 or 12_[4-7%2], and its cluster if it is another one."""
    number = job["JobId"]
    if "ArrayTaskId" in job:
        task = job["ArrayTaskId"]
        number = f"{job['ArrayJobId']}_{task if task.isdigit() else f'[{task}]'}"
    return ";".join(filter(None, (number, job[CLUSTER])))


def _on_cluster(jobs: Sequence[dict[str, str]], cluster: str) -> list[dict[str, str]]:
    """Return the jobs on this cluster; all of them if it is not known."""
    return [job for job in jobs if cluster in ("", job[CLUSTER])]


def _find(jobs: Sequence[dict[str, str]], job_id: str | None) -> dict[str, str]:
    """Return the fields of the job with this id, maybe of an array; an empty mapping without it."""
    number, cluster = split_cluster(job_id or "")
    array, _, task = number.partition("_")
    jobs = _on_cluster(jobs, cluster)
    found = [job for job in jobs if job["JobId"] == array]
    if task:
        found = [
            job
            for job in jobs
            if job.get("ArrayJobId") == array and int(task) in _tasks(job["ArrayTaskId"])
        ]
    return found[-1] if found else {}


def _tasks(text: str) -> set[int]:
    """Return the numbers in the ArrayTaskId of a job, or of all that have not begun.

    >>> sorted(_tasks("1,4-6%2")), _tasks("3"), sorted(_tasks("0-12:4%2"))
    ([1, 4, 5, 6], {3}, [0, 4, 8, 12])
    """
    parts = [re.fullmatch(TASKS, part) for part in text.partition("%")[0].split(",")]
    return {
        number
        for part in parts
        if part
        for number in range(
            int(part["first"]), int(part["last"] or part["first"]) + 1, int(part["step"] or 1)
        )
    }


def _last_start(folder: Path) -> dict[str, Any] | None:
    """Read the file that the job's last start has left in the run folder; None without one."""
    try:
        record = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.keys() >= RECORD_KEYS else None


def _job_lines(job: Mapping[str, str], record: Mapping[str, Any] | None) -> list[str]:
    """Return lines on the job that Slurm knows, or else on the last one that has started."""
    if not job:
        if record is None:
            return ["job    none is known"]
        why = "" if shutil.which("scontrol") else ", as scontrol is not installed here"
        return [
            f"job    {record['job']} is unknown to Slurm by now{why}",
            f"       its start {record['start']} was at {record['began']} on {record['nodes']}",
        ]
    state = job["JobState"]
    lines = [f"job    {_number(job)} {_state(job)}"]
    if state != "PENDING":
        lines[0] += f" on {job.get('NodeList', '(null)')}"
    lines[0] += f", {job.get('RunTime', '?')} of {job.get('TimeLimit', '?')}"
    lines[0] += f", start {int(job.get('Restarts', 0)) + 1}"
    if state not in ACTIVE:
        lines.append(f"       exit code {job.get('ExitCode', '?')}")
    return lines


def _queued_job(jobs: Sequence[dict[str, str]], folder: Path) -> dict[str, str]:
    """Return the fields of a pending or running job whose log is that of the folder, or none.

    `folder` is an absolute path without `.` and `..`.
    """
    log = f"{folder}.log"
    found = [job for job in jobs if job["JobState"] in ACTIVE and _has_log(job, log)]
    return found[-1] if found else {}


def _has_log(job: Mapping[str, str], log: str) -> bool:
    """Return whether a job, or a task of an array that has not begun, writes this log."""
    # Slurm shows the path as it was written, such as /here/../runs/a.log.
    path = os.path.normpath(job.get("StdOut", ""))
    if NO_TASK not in path:
        return path == log
    return any(
        path.replace(NO_TASK, str(task)) == log for task in _tasks(job.get("ArrayTaskId", ""))
    )


def _show(known: Collection[str]) -> list[dict[str, str]]:
    """Return the fields of all jobs that Slurm knows, as `scontrol show job` prints them.

    They are those of this machine's cluster, and of the clusters of the known job ids.
    """
    others = {split_cluster(job)[1] for job in known} - {""}
    # This machine's come last: an id without a cluster is first of all one of theirs.
    return [job for cluster in (*sorted(others), "") for job in _show_cluster(cluster)]


def _show_cluster(cluster: str) -> list[dict[str, str]]:
    """Return the fields of a cluster's jobs, '' for this machine's, with CLUSTER among them."""
    question = ["scontrol", *cluster_option(cluster), "show", "job", "--oneliner"]
    whole = os.environ | {"SLURM_BITSTR_LEN": "0"}  # else long lists of tasks are cut
    whole.pop("SLURM_CLUSTERS", "")  # by which '' would be another cluster
    try:
        done = subprocess.run(question, capture_output=True, text=True, errors="replace", env=whole)
    except FileNotFoundError:
        return []
    if done.returncode:
        return []
    # A value may hold spaces, and ends where the next field begins.
    fields = re.compile(r"(\w[\w/:]*)=(.*?)(?=\s+\w[\w/:]*=|\s*$)")
    jobs = [dict(fields.findall(line)) | {CLUSTER: cluster} for line in done.stdout.splitlines()]
    return [job for job in jobs if "JobState" in job and "JobId" in job]


def last_line(log: Path, but: str = "\n") -> str:
    """Return the last line of a log that has text, in printable characters, or ''.

    Lines that contain `but` are skipped.
    """
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = (line.strip() for line in reversed(lines) if line.strip() and but not in line)
    return sanitize(next(said, ""))
