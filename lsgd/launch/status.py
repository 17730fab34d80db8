"""The status of a run's Slurm job: `lsgd launch --status RUN`."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsgd.errors import UsageError
from lsgd.launch.slurm import JOB_FILE
from lsgd.paths import parse_path
from lsgd.run.read import NotARunError, read_run
from lsgd.sanitizing import sanitize

ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")
"""The states of Slurm's jobs that have not ended."""
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
    job = _queued_job(folder) or (_job(record["job"]) if record else {})
    if not record and not job and run is None:
        raise UsageError(
            f"{folder} has no run and no Slurm job; write the run_dir of a run, such as "
            "runs/bs8k/slurm-4711"
        )
    print(f"run    {folder}: {run.state if run else 'has not begun'}")
    state = job.get("JobState", "")
    for line in _job_lines(job, record):
        print(line)
    if record:
        print(f"logs   {(folder / record['log']).resolve()}")
        print(f"       {folder / record['process_logs']}, one of each process")
        if last := _last_line(folder / "logs/rank0.log"):
            print(f"       process 0 ends with: {last}")
    return 0 if state in ACTIVE or (run and run.finished) else 1


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
    state, number = job["JobState"], job["JobId"]
    if "ArrayTaskId" in job:
        number = f"{job['ArrayJobId']}_{job['ArrayTaskId']}"
    lines = [f"job    {number} {state}"]
    if state == "PENDING":
        lines[0] += f", waits for {job.get('Reason', 'None')}"
    else:
        lines[0] += f" on {job.get('NodeList', '(null)')}"
    lines[0] += f", {job.get('RunTime', '?')} of {job.get('TimeLimit', '?')}"
    lines[0] += f", start {int(job.get('Restarts', 0)) + 1}"
    if state not in ACTIVE:
        lines.append(f"       exit code {job.get('ExitCode', '?')}")
    return lines


def _queued_job(folder: Path) -> dict[str, str]:
    """Return the fields of a pending or running job whose log is that of the folder, or none."""
    log = str(folder.absolute()) + ".log"
    found = [job for job in _show() if job["JobState"] in ACTIVE and job.get("StdOut") == log]
    return found[-1] if found else {}


def _job(number: str) -> dict[str, str]:
    """Return the fields of a job that Slurm still knows, or an empty mapping."""
    found = _show(number)
    return found[-1] if found else {}


def _show(*number: str) -> list[dict[str, str]]:
    """Return the fields of all jobs, or of one, as `scontrol show job` prints them."""
    question = ["scontrol", "show", "job", "--oneliner", *number]
    try:
        done = subprocess.run(question, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        return []
    if done.returncode:
        return []
    # A value may hold spaces, and ends where the next field begins.
    fields = re.compile(r"(\w[\w/:]*)=(.*?)(?=\s+\w[\w/:]*=|\s*$)")
    jobs = [dict(fields.findall(line)) for line in done.stdout.splitlines()]
    return [job for job in jobs if "JobState" in job and "JobId" in job]


def _last_line(log: Path) -> str:
    """Return the last line of a log that has text, in printable characters, or ''."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((sanitize(line.strip()) for line in reversed(lines) if line.strip()), "")
