"""The runs of a study as arrays of Slurm jobs, and the job that reports on them."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from lsgd.errors import UsageError, converting_disk_full
from lsgd.files import lock
from lsgd.launch.slurm import cores_advice, slurm_array, slurm_task
from lsgd.launch.submission import (
    ARRAYS,
    MOST_JOBS,
    find_sbatch,
    most_array_jobs,
    new_answer_file,
    sbatch,
)
from lsgd.planned import PlannedRun, RunLauncher
from lsgd.tables import format_count


@dataclass(frozen=True)
class JobArray:
    """An array of Slurm jobs that have the same resources: one for each run."""

    name: str
    """The name of the study, and the number of the array among those that a command submits."""
    runs: list[PlannedRun]
    processes: int
    script: str


def job_arrays(
    launcher: RunLauncher,
    name: str,
    runs: Sequence[PlannedRun],
    at_once: int | None,
    most_jobs: int = MOST_JOBS,
) -> Iterator[JobArray]:
    """Yield the arrays that train these runs, `at_once` at a time, one for each size of run.

    Runs differ in size if some have too few workers for the nodes that the options request. An
    array has at most `most_jobs` jobs.
    """
    sizes: dict[tuple[tuple[str, str], ...], list[PlannedRun]] = {}
    for run in runs:
        _, options = launcher.fit(run.recipe)
        sizes.setdefault(tuple(options.items()), []).append(run)
    if advice := next(filter(None, (cores_advice(dict(size)) for size in sizes)), ""):
        print(f"lsgd: {advice}", file=sys.stderr)
    parts = [
        each[start : start + most_jobs]
        for each in sizes.values()
        for start in range(0, len(each), most_jobs)
    ]
    for number, part in enumerate(parts, 1):
        processes, _ = launcher.fit(part[0].recipe)
        title = name if len(parts) == 1 else f"{name}-{number}"
        requests = [launcher.request(run) for run in part]
        script = slurm_array(requests, title, f"{ARRAYS}/{title}-%A_%a.log", at_once)
        yield JobArray(title, part, processes, script)


def report_script(launcher: RunLauncher, name: str, arguments: Sequence[str]) -> str:
    """Return the batch script of the job that writes a study's report."""
    command = ["-m", "lsgd.study", *arguments, "--report-only"]
    title = f"{name}-report"
    return slurm_task(launcher.options, command, title, f"{ARRAYS}/{title}-%j.log")


def submit_arrays(
    launcher: RunLauncher,
    name: str,
    runs: Sequence[PlannedRun],
    at_once: int | None,
    report_arguments: Sequence[str],
) -> dict[str, str]:
    """Submit the runs that are not queued yet, and a job that reports after them; return failures.

    The failures are reasons by run. Raises UsageError if the first array is refused, and
    NotSavedError for a full disk.
    """
    find_sbatch()
    with ExitStack() as locks:
        files, failed = _lock_runs(runs, locks)
        free = [run for run in runs if str(run) in files]
        submitted: list[str] = []
        for array in job_arrays(launcher, name, free, at_once, most_array_jobs()):
            try:
                job = _submit(array, [files[str(run)] for run in array.runs])
            except (UsageError, OSError) as error:
                if not submitted:  # the site's rules, which the others would break too
                    raise
                failed |= dict.fromkeys(map(str, array.runs), str(error))
                continue
            submitted.append(job)
            limit = f", {at_once} at a time" if at_once and at_once < len(array.runs) else ""
            print(
                f"{array.name}: job {job} has {format_count(len(array.runs), 'run')}, processes of "
                f"each: {array.processes}{limit}",
                flush=True,
            )
    if submitted:
        script = report_script(launcher, name, report_arguments)
        try:
            answer = new_answer_file(ARRAYS, f"{name}-report")
            job = sbatch(script, answer, after=submitted)
            print(f"{name}: job {job} will write the report", flush=True)
        except (UsageError, OSError) as error:
            print(f"{name}: no job will write the report: {error}", flush=True)
    return failed


def _lock_runs(
    runs: Sequence[PlannedRun], locks: ExitStack
) -> tuple[dict[str, IO[str]], dict[str, str]]:
    """Lock the files of the runs' jobs, so that no other command submits the same runs meanwhile.

    Returns the files of the runs that no job trains, and the reasons why that is unknown of others.
    """
    files: dict[str, IO[str]] = {}
    failed: dict[str, str] = {}
    # In the same order in all studies, or two that share runs might wait for each other forever.
    for run in sorted(runs, key=lambda run: run.job_path):
        with converting_disk_full(run.job_path):
            run.job_path.parent.mkdir(parents=True, exist_ok=True)
            file = locks.enter_context(run.job_path.open("a", encoding="utf-8"))
        lock(file, wait=True)
        try:
            if job := run.active_job:
                print(f"{run}: {job} is already queued or running", flush=True)
            else:
                files[str(run)] = file
        except UsageError as error:
            failed[str(run)] = str(error)
            print(f"{run}: {error}", flush=True)
    return files, failed


def _submit(array: JobArray, files: Sequence[IO[str]]) -> str:
    """Submit an array; write into the file of each run which job of which array trains it."""
    answer = new_answer_file(ARRAYS, array.name)
    for number, file in enumerate(files):
        file.truncate(0)
        # Before sbatch runs, so that no job is unknown if this process is killed.
        file.write(f"job {number} of {answer.name}\n")
        file.flush()
    try:
        return sbatch(array.script, answer, files=files)
    except (UsageError, OSError):
        for file in files:
            file.truncate(0)
        raise
